// This header: the endpoints of one rank, one for each transport that it may use, and which of them reaches a peer.
// They belong to one thread at a time. Links are closed before their endpoints.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "transports/transport.h"

namespace tutti {

struct Membership;

using Endpoints = std::vector<Endpoint>;  // in order of preference
// What a rank publishes: the address of each transport's endpoint, by name.
using Addresses = std::map<std::string, std::string>;

// The order of preference is that of `transports`, or with `by_cost` the estimated cost.
Result<Endpoints> open_endpoints(const tuttiEndpointConfig& config,
                                 const std::vector<const tuttiTransport*>& transports, bool by_cost);
Addresses addresses_of(const Endpoints& endpoints);
bool is_shared_memory(const Endpoint& endpoint);
// Of the fastest endpoint that reaches other hosts.
uint64_t network_bytes_per_second(const Endpoints& endpoints);
// The first transport that should reach the peer, and why none before it does: "tcp, because shm: ...".
std::string route_to(const Endpoints& endpoints, const Addresses& peer);
// Registers the memory. An error unless every peer is reached by a transport that can move data to and from it.
Result<void> check_delivery(Endpoints& endpoints, const Membership& me, const void* memory, size_t bytes);

// An outgoing link being made: transports are tried one after the other, in order of preference.
class LinkAttempt {
 public:
  // `delivers`: only transports that move data between devices.
  LinkAttempt(const tuttiLinkConfig& config, const Addresses& peer, bool delivers)
      : config_(config), peer_(peer), delivers_(delivers) {}
  // True once there is a link to take; an error when no transport is left: kSystemError if one of them failed for lack
  // of a local resource.
  Result<bool> advance(Endpoints& endpoints);
  Link take() { return std::move(link_); }
  // Why shared memory with this peer, on the same host, failed. Empty: it did not.
  const std::string& why_not_shared() const { return why_not_shared_; }
  int peer() const { return config_.peer; }
  const char* transport() const { return link_.is_made() ? link_.transport() : "no transport"; }

 private:
  Result<bool> start_next(Endpoints& endpoints);
  void has_failed(const std::string& transport, const std::string& why, Code code);

  const tuttiLinkConfig config_;
  const Addresses peer_;
  const bool delivers_;
  size_t next_transport_ = 0;
  Link link_;
  std::string story_;  // why other transports were not taken
  std::string why_not_shared_;
  Code code_ = Code::kRemoteError;
};

}  // namespace tutti
