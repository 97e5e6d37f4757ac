// transports: how bytes get from one rank to another. Every transport, built-in or plugin, is a table of functions
// behind the C ABI of include/tutti/transport.h; this header wraps that table for C++ (owning, move-only) and lists the
// built-in ones. Threading and lifetime are those of the ABI: one thread at a time, links before their endpoint.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "tutti/transport.h"

namespace tutti {

extern const tuttiTransport kShmTransport;
extern const tuttiTransport kTcpTransport;
// For links that are not made yet and later replaced by move assignment: accepts and delivers nothing.
extern const tuttiTransport kNoTransport;

// The transports that `names` ("shm,tcp") allows, in that order; all for "". kInvalidUsage names the unknown transport
// and the known ones, the plugin (TUTTI_TRANSPORT_PLUGIN) that cannot be loaded, or one that cannot encrypt.
Result<std::vector<const tuttiTransport*>> find_transports(const std::string& names, bool encrypts = false);

// The transport of a shared object, from the function that include/tutti/transport.h describes; valid until the process
// ends. From any thread. kInvalidUsage names the path and what is wrong: no such file, not a plugin, a table of another
// version, or the plugin's own reason why it cannot be used here.
Result<const tuttiTransport*> load_plugin(const std::string& path);

// The transport "net" over a network plugin in NCCL's layout; null if the shared object has none. Not thread-safe.
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

inline bool is_same(const tuttiTag& a, const tuttiTag& b) {
  return ((a.word[0] ^ b.word[0]) | (a.word[1] ^ b.word[1]) | (a.word[2] ^ b.word[2]) | (a.word[3] ^ b.word[3])) == 0;
}

// Closes links and endpoints: the deleter of their pointers.
struct Close {
  const tuttiTransport* table = nullptr;
  void operator()(tuttiLink* link) const { table->link_close(link); }
  void operator()(tuttiEndpoint* endpoint) const { table->endpoint_close(endpoint); }
};

class Link {
 public:
  Link() = default;
  Link(const tuttiTransport* table, tuttiLink* link, const tuttiLinkConfig& config)
      : link_(link, Close{table}), config_(config) {}

  bool is_made() const { return link_ != nullptr; }
  const char* transport() const { return table()->name; }
  int peer() const { return config_.peer; }
  const tuttiLinkConfig& config() const { return config_; }

  tuttiResult_t poll(tuttiTransportError* error, tuttiLinkState* state = nullptr) {
    return table()->link_poll(link_.get(), state, error);
  }
  tuttiLinkState state() {
    tuttiLinkState state{sizeof state, 0, kNotCounted};
    table()->link_poll(link_.get(), &state, nullptr);
    return state;
  }
  uint32_t unsent() { return state().unsent; }
  void revoke() {
    if (table()->revoke != nullptr) table()->revoke(link_.get());
  }
  bool wait_begin(tuttiWait* wait) {
    *wait = {-1};
    return table()->wait_begin == nullptr || table()->wait_begin(link_.get(), wait) != 0;
  }
  void wait_end() {
    if (table()->wait_end != nullptr) table()->wait_end(link_.get());
  }

  tuttiRoom acquire(const void* data, uint32_t bytes, tuttiPosting posting, void** at) {
    return table()->acquire(link_.get(), data, bytes, posting, at);
  }
  // A slot, or null. Not inline: a variable whose address is taken costs the caller registers.
  [[gnu::noinline]] void* acquire(uint32_t bytes = 0) {
    void* slot = nullptr;
    return acquire(nullptr, bytes, TUTTI_NOT_POSTED, &slot) == TUTTI_NO_ROOM ? nullptr : slot;
  }
  // These three return the ABI's 0, 1 or 2.
  int publish(uint32_t bytes, const tuttiTag& tag) { return publish(nullptr, bytes, tag); }
  int publish(const void* data, uint32_t bytes, const tuttiTag& tag) {
    return table()->publish(link_.get(), data, bytes, &tag);
  }
  int push(const void* data, uint32_t bytes, const tuttiTag& tag) {
    return table()->push != nullptr ? table()->push(link_.get(), data, bytes, &tag) : push_in_steps(data, bytes, tag);
  }

  bool peek(tuttiMessage* message) { return table()->peek(link_.get(), message) != 0; }
  void release() { table()->release(link_.get()); }
  const void* match(uint32_t bytes, const tuttiTag& tag) {
    return table()->match != nullptr ? table()->match(link_.get(), bytes, &tag) : match_by_peeking(bytes, tag);
  }
  Result<const void*> read() {
    if (table()->read == nullptr) return Error{Code::kInternalError, "this transport exposes no memory"};
    const void* data = nullptr;
    tuttiTransportError error{};
    const tuttiResult_t code = table()->read(link_.get(), &data, &error);
    if (code != tuttiSuccess) return to_error(code, error, code == tuttiSystemError ? -1 : peer());
    return data;
  }
  bool post(uint32_t ahead, void* to, uint32_t bytes, bool required = false) {
    return table()->post != nullptr && table()->post(link_.get(), ahead, to, bytes, required ? 1 : 0) != 0;
  }

  static constexpr uint64_t kNotCounted = UINT64_MAX;

 private:
  // push and match for a transport that has none of its own. Not inline, as above.
  [[gnu::noinline]] int push_in_steps(const void* data, uint32_t bytes, const tuttiTag& tag) {
    void* const slot = acquire(bytes);
    if (slot == nullptr) return 0;
    if (bytes > 0) memcpy(slot, data, bytes);  // else data may be null
    return publish(bytes, tag);
  }
  [[gnu::noinline]] const void* match_by_peeking(uint32_t bytes, const tuttiTag& tag) {
    tuttiMessage message;
    const bool is_it = peek(&message) && message.bytes == bytes && is_same(message.tag, tag);
    return is_it ? message.data : nullptr;
  }
  const tuttiTransport* table() const { return link_.get_deleter().table; }

  std::unique_ptr<tuttiLink, Close> link_;
  tuttiLinkConfig config_{};
};

// Polls the link; an error names the rank that caused it.
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
    Endpoint opened;
    tuttiEndpoint* endpoint = nullptr;
    tuttiTransportError error{};
    const tuttiResult_t code = table->endpoint_open(&config, &endpoint, &opened.info_, &error);
    opened.endpoint_ = {endpoint, Close{table}};
    if (code != tuttiSuccess) return to_error(code, error, -1);
    opened.info_.bytes_per_second = std::max<uint64_t>(opened.info_.bytes_per_second, 1);
    return opened;
  }

  const char* name() const { return table()->name; }
  const tuttiEndpointInfo& info() const { return info_; }
  std::string address() const { return {info_.address, info_.address_bytes}; }
  // Empty if a peer with this address may be reached, else why not.
  std::string unreachable_because(const std::string& peer_address) const {
    char why[256] = "";
    const bool reaches = table()->endpoint_reaches == nullptr ||
                         table()->endpoint_reaches(endpoint_.get(), peer_address.data(),
                                                   static_cast<uint32_t>(peer_address.size()), why, sizeof why) != 0;
    return reaches ? "" : why;
  }
  // Whether it moves bytes directly between devices' memory.
  bool delivers() const { return table()->endpoint_registers != nullptr; }
  Result<void> registers(const void* memory, uint64_t bytes) {
    char why[500] = "";
    if (table()->endpoint_registers(endpoint_.get(), memory, bytes, why, sizeof why) != 0) return {};
    return Error{Code::kSystemError, why};
  }
  void narrow(bool here, bool elsewhere) {
    if (table()->endpoint_narrow != nullptr) table()->endpoint_narrow(endpoint_.get(), here ? 1 : 0, elsewhere ? 1 : 0);
  }
  Result<Link> connect(const tuttiLinkConfig& config, const std::string& peer_address) {
    tuttiLink* link = nullptr;
    tuttiTransportError error{};
    const tuttiResult_t code = table()->connect(endpoint_.get(), &config, peer_address.data(),
                                                static_cast<uint32_t>(peer_address.size()), &link, &error);
    if (code != tuttiSuccess) return to_error(code, error, config.peer);
    return Link(table(), link, config);
  }
  // True and a link if one has arrived.
  Result<bool> accept(Link* link) {
    tuttiLink* raw = nullptr;
    tuttiLinkConfig config{};
    tuttiTransportError error{};
    const tuttiResult_t code = table()->accept(endpoint_.get(), &raw, &config, &error);
    if (code != tuttiSuccess) return to_error(code, error, -1);
    if (raw == nullptr) return false;
    *link = Link(table(), raw, config);
    return true;
  }

 private:
  Endpoint() = default;
  const tuttiTransport* table() const { return endpoint_.get_deleter().table; }

  std::unique_ptr<tuttiEndpoint, Close> endpoint_;
  tuttiEndpointInfo info_{sizeof info_, 10'000, 5'000'000'000, 0, {}};
};

}  // namespace tutti
