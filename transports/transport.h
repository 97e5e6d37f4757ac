// transports: how bytes get from one rank to another. Every transport, built-in or plugin, is a table of functions
// behind the C ABI of include/tutti/transport.h; this header wraps that table for C++ (owning, move-only) and lists the
// built-in ones. Threading and lifetime are those of the ABI: one thread at a time, links before their endpoint.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
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

// What `push` and `match` do where a transport has none of its own; of anything with the other verbs.
template <class Sender>
int push_in_steps(Sender& sender, const void* data, uint32_t bytes, const tuttiTag& tag) {
  void* slot = nullptr;
  if (sender.acquire(nullptr, 0, TUTTI_NOT_POSTED, &slot) == TUTTI_NO_ROOM) return 0;
  if (bytes > 0) memcpy(slot, data, bytes);  // else it may be null
  return sender.publish(nullptr, bytes, tag);
}

inline bool is_same(const tuttiTag& a, const tuttiTag& b) {
  return ((a.word[0] ^ b.word[0]) | (a.word[1] ^ b.word[1]) | (a.word[2] ^ b.word[2]) | (a.word[3] ^ b.word[3])) == 0;
}

template <class Receiver>
const void* match_by_peeking(Receiver& receiver, uint32_t bytes, const tuttiTag& tag) {
  tuttiMessage message;
  const bool is_it = receiver.peek(&message) && message.bytes == bytes && is_same(message.tag, tag);
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

  tuttiResult_t poll(tuttiTransportError* error, tuttiLinkState* state = nullptr) {
    return table_->link_poll(link_, state, error);
  }
  tuttiLinkState state() {
    tuttiLinkState state{sizeof state, 0, kNotCounted};
    table_->link_poll(link_, &state, nullptr);
    return state;
  }
  uint32_t unsent() { return state().unsent; }
  void revoke() {
    if (table_->revoke != nullptr) table_->revoke(link_);
  }
  // Without a descriptor, -1, where the transport has nothing to sleep on.
  bool wait_begin(tuttiWait* wait) { return table_->wait_begin == nullptr || table_->wait_begin(link_, wait) != 0; }
  void wait_end() {
    if (table_->wait_end != nullptr) table_->wait_end(link_);
  }

  tuttiRoom acquire(const void* data, uint32_t bytes, tuttiPosting posting, void** at) {
    return table_->acquire(link_, data, bytes, posting, at);
  }
  // A slot, or null. Not inline: a variable whose address is taken costs the caller registers.
  [[gnu::noinline]] void* acquire() {
    void* slot = nullptr;
    return acquire(nullptr, 0, TUTTI_NOT_POSTED, &slot) == TUTTI_NO_ROOM ? nullptr : slot;
  }
  // These three return the ABI's 0, 1 or 2.
  int publish(uint32_t bytes, const tuttiTag& tag) { return publish(nullptr, bytes, tag); }
  int publish(const void* data, uint32_t bytes, const tuttiTag& tag) {
    return table_->publish(link_, data, bytes, &tag);
  }
  int push(const void* data, uint32_t bytes, const tuttiTag& tag) {
    return table_->push != nullptr ? table_->push(link_, data, bytes, &tag) : push_slowly(data, bytes, tag);
  }

  bool peek(tuttiMessage* message) { return table_->peek(link_, message) != 0; }
  void release() { table_->release(link_); }
  const void* match(uint32_t bytes, const tuttiTag& tag) {
    return table_->match != nullptr ? table_->match(link_, bytes, &tag) : match_slowly(bytes, tag);
  }
  Result<const void*> read() {
    const void* data = nullptr;
    tuttiTransportError error{};
    const tuttiResult_t code = table_->read(link_, &data, &error);
    if (code != tuttiSuccess) return to_error(code, error, peer());
    return data;
  }
  bool post(uint32_t ahead, void* to, uint32_t bytes, bool required = false) {
    return table_->post != nullptr && table_->post(link_, ahead, to, bytes, required ? 1 : 0) != 0;
  }

  static constexpr uint64_t kNotCounted = UINT64_MAX;

 private:
  // Not inline, either.
  [[gnu::noinline]] int push_slowly(const void* data, uint32_t bytes, const tuttiTag& tag) {
    return push_in_steps(*this, data, bytes, tag);
  }
  [[gnu::noinline]] const void* match_slowly(uint32_t bytes, const tuttiTag& tag) {
    return match_by_peeking(*this, bytes, tag);
  }

  const tuttiTransport* table_ = nullptr;
  tuttiLink* link_ = nullptr;
  tuttiLinkConfig config_{};
};

// Asks it; an error is of the rank whose fault it is.
inline Result<void> is_well(Link& link) {
  tuttiTransportError error{};
  tuttiLinkState state{sizeof state, 0, 0, 0};
  const tuttiResult_t code = link.poll(&error, &state);
  if (code == tuttiSuccess || code == tuttiInProgress) return {};
  return to_error(code, error, state.culprit_plus_1 > 0 ? static_cast<int>(state.culprit_plus_1) - 1 : link.peer());
}

class Endpoint {
 public:
  static Result<Endpoint> open(const tuttiTransport* table, const tuttiEndpointConfig& config) {
    Endpoint opened(table);
    tuttiTransportError error{};
    const tuttiResult_t code = table->endpoint_open(&config, &opened.endpoint_, &opened.info_, &error);
    if (code != tuttiSuccess) return to_error(code, error, -1);
    opened.info_.bytes_per_second = std::max<uint64_t>(opened.info_.bytes_per_second, 1);
    return opened;
  }
  Endpoint(Endpoint&& other) noexcept
      : table_(other.table_), endpoint_(std::exchange(other.endpoint_, nullptr)), info_(other.info_) {}
  Endpoint& operator=(Endpoint&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(endpoint_, other.endpoint_);
    std::swap(info_, other.info_);
    return *this;
  }
  ~Endpoint() {
    if (endpoint_ != nullptr) table_->endpoint_close(endpoint_);
  }

  const char* name() const { return table_->name; }
  const tuttiEndpointInfo& info() const { return info_; }
  std::string address() const { return {info_.address, info_.address_bytes}; }
  // Empty if a peer with this address may be reached, else why not.
  std::string unreachable_because(const std::string& peer_address) const {
    char why[256] = "";
    const bool reaches = table_->endpoint_reaches == nullptr ||
                         table_->endpoint_reaches(endpoint_, peer_address.data(),
                                                  static_cast<uint32_t>(peer_address.size()), why, sizeof why) != 0;
    return reaches ? "" : why;
  }
  // From memory of devices to memory of devices.
  bool delivers() const { return table_->endpoint_registers != nullptr; }
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
  explicit Endpoint(const tuttiTransport* table) : table_(table) {}
  const tuttiTransport* table_;
  tuttiEndpoint* endpoint_ = nullptr;
  tuttiEndpointInfo info_{sizeof info_, 10'000, 5'000'000'000, 0, {}};
};

}  // namespace tutti
