// transports: how bytes get from one rank to another. Every transport, built-in or plugin, is a table of functions
// behind the C ABI of include/tutti/transport.h; this header wraps that table for C++ (owning, move-only) and lists the
// built-in ones. Threading and lifetime are those of the ABI: one thread at a time, links before their endpoint.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/shared_memory.h"
#include "tutti/transport.h"

namespace tutti {

extern const tuttiTransport kShmTransport;
extern const tuttiTransport kTcpTransport;
// Of links that are yet to be made: they take nothing and bring nothing.
extern const tuttiTransport kNoTransport;

// The transports that `names` ("shm,tcp") allows, in that order; all there are for "". kInvalidUsage names the unknown
// one and those there are, the plugin (TUTTI_TRANSPORT_PLUGIN) that cannot be loaded, or one that cannot encrypt.
Result<std::vector<const tuttiTransport*>> find_transports(const std::string& names, bool encrypts = false);

// The transport "net" over a network plugin in NCCL's layout; null if the shared object is none. Not thread-safe.
Result<const tuttiTransport*> adapt_net_plugin(void* object);

inline Error to_error(tuttiResult_t code, const tuttiTransportError& error, int peer) {
  return Error{static_cast<Code>(code), error.text, peer, error.sys_errno};
}

// The other direction, for transports written in C++.
inline tuttiResult_t report(const Error& error, tuttiTransportError* out) {
  if (out != nullptr) {
    out->code = static_cast<tuttiResult_t>(error.code);
    out->sys_errno = error.sys_errno;
    const size_t bytes = std::min(error.message.size(), sizeof out->text - 1);
    memcpy(out->text, error.message.data(), bytes);
    out->text[bytes] = '\0';
  }
  return static_cast<tuttiResult_t>(error.code);
}

// Of anything with these verbs: what `push` does where a transport has none of its own.
template <class Sender>
int push_in_steps(Sender& sender, const void* data, uint32_t bytes, const tuttiTag& tag) {
  void* const slot = sender.try_acquire();
  if (slot == nullptr) return 0;
  if (bytes > 0) memcpy(slot, data, bytes);  // else it may be null
  sender.publish(bytes, tag);
  return 1;
}

inline bool is_same(const tuttiTag& a, const tuttiTag& b) {
  return ((a.word[0] ^ b.word[0]) | (a.word[1] ^ b.word[1]) | (a.word[2] ^ b.word[2]) | (a.word[3] ^ b.word[3])) == 0;
}

// Likewise what `match` does.
template <class Receiver>
const void* match_by_peeking(Receiver& receiver, uint32_t bytes, const tuttiTag& tag) {
  tuttiMessage message;
  const bool is_it = receiver.try_peek(&message) && message.bytes == bytes && is_same(message.tag, tag);
  return is_it ? message.data : nullptr;
}

class Link {
 public:
  Link() = default;
  Link(const tuttiTransport* table, tuttiLink* link, const tuttiLinkConfig& config)
      : table_(table), link_(link), config_(config) {}
  // The place of one that is yet to be made, and is then moved here.
  explicit Link(const tuttiLinkConfig& config) : table_(&kNoTransport), config_(config) {}
  Link(Link&& other) noexcept
      : table_(other.table_), link_(std::exchange(other.link_, nullptr)), config_(other.config_) {}
  Link& operator=(Link&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(link_, other.link_);
    std::swap(config_, other.config_);
    return *this;
  }
  ~Link() {
    if (link_ != nullptr) table_->link_close(link_);
  }

  bool is_made() const { return link_ != nullptr; }
  const char* transport() const { return table_->name; }
  int peer() const { return config_.peer; }
  uint32_t channel() const { return config_.channel; }
  uint32_t slots() const { return config_.slots; }
  uint32_t slot_bytes() const { return config_.slot_bytes; }

  tuttiResult_t poll(tuttiTransportError* error) { return table_->link_poll(link_, error); }
  void* try_acquire() { return table_->try_acquire(link_); }
  void publish(uint32_t bytes, const tuttiTag& tag) { table_->publish(link_, bytes, &tag); }
  // As the ABI's: 0, 1 or 2.
  int push(const void* data, uint32_t bytes, const tuttiTag& tag) {
    return table_->push != nullptr ? table_->push(link_, data, bytes, &tag) : push_in_steps(*this, data, bytes, tag);
  }
  uint32_t unsent() { return table_->unsent(link_); }
  bool try_peek(tuttiMessage* message) { return table_->try_peek(link_, message) != 0; }
  const void* match(uint32_t bytes, const tuttiTag& tag) {
    return table_->match != nullptr ? table_->match(link_, bytes, &tag) : match_by_peeking(*this, bytes, tag);
  }
  void release() { table_->release(link_); }
  void expect(void* to, uint32_t bytes) {
    if (table_->expect != nullptr) table_->expect(link_, to, bytes);
  }
  void expect_ahead(uint32_t ahead, void* to, uint32_t bytes) {
    if (table_->expect_ahead != nullptr) table_->expect_ahead(link_, ahead, to, bytes);
  }
  void* place(uint32_t bytes) { return table_->place != nullptr ? table_->place(link_, bytes) : nullptr; }
  // The ABI's, of an endpoint that delivers().
  bool demand(void* to, uint32_t bytes) { return table_->demand(link_, to, bytes) != 0; }
  int deliver(const void* data, uint32_t bytes, const tuttiTag& tag) {
    return table_->deliver(link_, data, bytes, &tag);
  }
  bool wait_begin(bool for_slot, tuttiWait* wait) { return table_->wait_begin(link_, for_slot, wait) != 0; }
  void wait_end() { table_->wait_end(link_); }
  bool lend(const void* data, uint32_t bytes, const tuttiTag& tag) {
    return table_->lend != nullptr && table_->lend(link_, data, bytes, &tag) != 0;
  }
  bool can_lend(const void* data, uint32_t bytes) {
    if (table_->can_lend != nullptr) return table_->can_lend(link_, data, bytes) != 0;
    return table_->lend != nullptr && SharedMemory::find_registered(data, bytes) != nullptr;
  }
  // Nothing where the transport does not tell.
  std::optional<uint64_t> resent() {
    return table_->resent != nullptr ? std::optional(table_->resent(link_)) : std::nullopt;
  }
  void recall() {
    if (table_->recall != nullptr) table_->recall(link_);
  }
  Result<const void*> borrow() {
    const void* data = nullptr;
    tuttiTransportError error{};
    const tuttiResult_t code = table_->borrow(link_, &data, &error);
    if (code != tuttiSuccess) return to_error(code, error, peer());
    return data;
  }

 private:
  const tuttiTransport* table_ = nullptr;
  tuttiLink* link_ = nullptr;
  tuttiLinkConfig config_{};
};

class Endpoint {
 public:
  static Result<Endpoint> open(const tuttiTransport* table, const tuttiEndpointConfig& config) {
    tuttiEndpoint* endpoint = nullptr;
    tuttiTransportError error{};
    const tuttiResult_t code = table->endpoint_open(&config, &endpoint, &error);
    if (code != tuttiSuccess) return to_error(code, error, -1);
    return Endpoint(table, endpoint);
  }
  Endpoint(Endpoint&& other) noexcept : table_(other.table_), endpoint_(std::exchange(other.endpoint_, nullptr)) {}
  Endpoint& operator=(Endpoint&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(endpoint_, other.endpoint_);
    return *this;
  }
  ~Endpoint() {
    if (endpoint_ != nullptr) table_->endpoint_close(endpoint_);
  }

  const char* name() const { return table_->name; }
  tuttiTransportProperties properties() const {
    tuttiTransportProperties properties{sizeof properties, 10'000, 5'000'000'000};
    if (table_->endpoint_properties != nullptr) table_->endpoint_properties(endpoint_, &properties);
    properties.bytes_per_second = std::max<uint64_t>(properties.bytes_per_second, 1);
    return properties;
  }
  std::string address() const {
    std::string blob(TUTTI_ADDRESS_MAX_BYTES, '\0');
    blob.resize(table_->endpoint_address(endpoint_, blob.data()));
    return blob;
  }
  // Empty if a peer with this address may be reached, else why not.
  std::string unreachable_because(const std::string& peer_address) const {
    char why[256] = "";
    const bool reaches = table_->endpoint_reaches(endpoint_, peer_address.data(),
                                                  static_cast<uint32_t>(peer_address.size()), why, sizeof why) != 0;
    return reaches ? "" : why;
  }
  // To memory of devices, and from there.
  bool delivers() const { return table_->deliver != nullptr; }
  Result<void> registers(const void* memory, uint64_t bytes) {
    char why[500] = "";
    if (table_->endpoint_registers(endpoint_, memory, bytes, why, sizeof why) != 0) return {};
    return Error{Code::kSystemError, why};
  }
  void narrow(bool here, bool elsewhere) {
    if (table_->endpoint_narrow != nullptr) table_->endpoint_narrow(endpoint_, here ? 1 : 0, elsewhere ? 1 : 0);
  }
  Result<Link> connect(const tuttiLinkConfig& config, const std::string& peer_address) {
    tuttiLink* link = nullptr;
    tuttiTransportError error{};
    const tuttiResult_t code = table_->connect(endpoint_, &config, peer_address.data(),
                                               static_cast<uint32_t>(peer_address.size()), &link, &error);
    if (code != tuttiSuccess) return to_error(code, error, config.peer);
    return Link(table_, link, config);
  }
  // True and a link if one has arrived.
  Result<bool> accept(Link* link) {
    tuttiLink* raw = nullptr;
    tuttiLinkConfig config{};
    tuttiTransportError error{};
    const tuttiResult_t code = table_->accept(endpoint_, &raw, &config, &error);
    if (code != tuttiSuccess) return to_error(code, error, -1);
    if (raw == nullptr) return false;
    *link = Link(table_, raw, config);
    return true;
  }

 private:
  Endpoint(const tuttiTransport* table, tuttiEndpoint* endpoint) : table_(table), endpoint_(endpoint) {}
  const tuttiTransport* table_;
  tuttiEndpoint* endpoint_;
};

}  // namespace tutti
