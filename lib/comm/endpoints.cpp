#include "comm/endpoints.h"

#include <algorithm>
#include <string_view>

#include "base/log.h"
#include "base/sort.h"
#include "comm/membership.h"

namespace tutti {
namespace {

// Empty if the endpoint can reach a peer with these addresses, else why not.
std::string unreachable_because(const Endpoint& endpoint, const Addresses& peer) {
  const auto address = peer.find(endpoint.name());
  return address == peer.end() ? "the peer does not have it" : endpoint.unreachable_because(address->second);
}

// Appends to the reasons of other transports.
void add_reason(std::string* story, const std::string& transport, const std::string& why) {
  *story += (story->empty() ? "" : "; ") + transport + ": " + why;
}

// The endpoint's estimated time for a message of a slot's size. Shared memory always comes first: a network device may
// claim to be faster than a core copies, but it is farther away, and shared by all.
double cost_ns(const Endpoint& endpoint) {
  if (is_shared_memory(endpoint)) return 0;
  const tuttiEndpointInfo& info = endpoint.info();
  return info.latency_ns + (128 << 10) * 1e9 / static_cast<double>(info.bytes_per_second);
}

}  // namespace

Result<Endpoints> open_endpoints(const tuttiEndpointConfig& config,
                                 const std::vector<const tuttiTransport*>& transports, bool by_cost) {
  Endpoints endpoints;
  std::string refused;
  for (const tuttiTransport* transport : transports) {
    auto endpoint = Endpoint::open(transport, config);
    if (endpoint) {
      endpoints.push_back(std::move(endpoint).value());
      continue;
    }
    if (endpoint.error().code == Code::kInvalidUsage)  // a mistake, which a warning would let pass
      return Error{Code::kInvalidUsage, std::string(transport->name) + ": " + endpoint.error().message};
    log(LogLevel::kWarn, "transport %s is not usable here: %s", transport->name, endpoint.error().message.c_str());
    add_reason(&refused, transport->name, endpoint.error().message);
    if (endpoints.empty() && transport == transports.back())
      return Error{endpoint.error().code, "no transport is usable here: " + refused};
  }
  if (by_cost) sort_stably(endpoints, [](const Endpoint& a, const Endpoint& b) { return cost_ns(a) < cost_ns(b); });
  return endpoints;
}

Addresses addresses_of(const Endpoints& endpoints) {
  Addresses all;
  for (const Endpoint& endpoint : endpoints) all[endpoint.name()] = endpoint.address();
  return all;
}

bool is_shared_memory(const Endpoint& endpoint) {
  return endpoint.name() == std::string_view("shm");
}

uint64_t network_bytes_per_second(const Endpoints& endpoints) {
  uint64_t fastest = 0;
  for (const Endpoint& endpoint : endpoints)
    if (!is_shared_memory(endpoint)) fastest = std::max(fastest, endpoint.info().bytes_per_second);
  constexpr uint64_t kUsual = 1'000'000'000;
  return fastest > 0 ? fastest : kUsual;
}

std::string route_to(const Endpoints& endpoints, const Addresses& peer) {
  std::string story;
  for (const Endpoint& endpoint : endpoints) {
    const std::string why = unreachable_because(endpoint, peer);
    if (why.empty()) return std::string(endpoint.name()) + (story.empty() ? "" : ", because " + story);
    add_reason(&story, endpoint.name(), why);
  }
  return "no transport: " + story;
}

Result<void> check_delivery(Endpoints& endpoints, const Membership& me, const void* memory, size_t bytes) {
  std::vector<const Endpoint*> able;
  std::string story;
  for (Endpoint& endpoint : endpoints) {
    const Result<void> registered =
        endpoint.delivers() ? endpoint.registers(memory, bytes) : Error{Code::kSystemError, "it cannot bypass the CPU"};
    if (registered)
      able.push_back(&endpoint);
    else
      add_reason(&story, endpoint.name(), registered.error().message);
  }
  for (int peer = 0; peer < me.n_ranks; peer++) {
    const Addresses addresses = (*me.roster)[peer].addresses;
    std::string why = story;
    const bool is_reached = std::any_of(able.begin(), able.end(), [&](const Endpoint* endpoint) {
      const std::string not_because = unreachable_because(*endpoint, addresses);
      if (!not_because.empty()) add_reason(&why, format("%s to rank %d", endpoint->name(), peer), not_because);
      return not_because.empty();
    });
    if (!is_reached && peer != me.rank) return Error{Code::kSystemError, why};
  }
  return {};
}

Result<bool> LinkAttempt::advance(Endpoints& endpoints) {
  if (!link_.is_made()) return start_next(endpoints);
  tuttiTransportError error{};
  const tuttiResult_t code = link_.poll(&error);
  if (code == tuttiInProgress) return false;
  if (code == tuttiSuccess) {
    log(LogLevel::kInfo, "link to rank %d channel %u through %s%s%s", config_.peer, config_.channel, link_.transport(),
        story_.empty() ? "" : ", because ", story_.c_str());
    return true;
  }
  has_failed(link_.transport(), error.text, static_cast<Code>(code));
  link_ = Link();
  return start_next(endpoints);
}

// Notes why a transport that should reach the peer did not.
void LinkAttempt::has_failed(const std::string& transport, const std::string& why, Code code) {
  add_reason(&story_, transport, why);
  if (code == Code::kSystemError) code_ = code;
  if (transport == "shm") why_not_shared_ = why;
}

// Tries the next transport that reaches the peer. Returns false, since making a link takes time.
Result<bool> LinkAttempt::start_next(Endpoints& endpoints) {
  while (next_transport_ < endpoints.size()) {
    Endpoint& endpoint = endpoints[next_transport_++];
    const std::string why =
        delivers_ && !endpoint.delivers() ? "it cannot bypass the CPU" : unreachable_because(endpoint, peer_);
    if (!why.empty()) {
      add_reason(&story_, endpoint.name(), why);
      continue;
    }
    auto link = endpoint.connect(config_, peer_.at(endpoint.name()));
    if (link) {
      link_ = std::move(link).value();
      return false;
    }
    has_failed(endpoint.name(), link.error().message, link.error().code);
  }
  return Error{code_,
               format("no transport reaches rank %d: %s (TUTTI_TRANSPORTS sets which are allowed)", config_.peer,
                      story_.c_str()),
               config_.peer};
}

}  // namespace tutti
