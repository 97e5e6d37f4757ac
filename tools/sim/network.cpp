#include "tools/sim/network.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "plan/planner.h"

namespace tutti::sim {
namespace {

double per_ns(double bytes_per_second) {
  return bytes_per_second / 1e9;
}

}  // namespace

Result<Network> Network::make(Cluster cluster, int n_ranks) {
  if (n_ranks < 1) return Error{Code::kInvalidUsage, format("%d ranks: there must be at least 1", n_ranks)};
  if (cluster.racks > 0 && n_ranks > cluster.capacity())
    return Error{Code::kInvalidUsage, format("%d ranks are more than the topology has room for, %d racks of %d hosts "
                                             "of %d ranks; leave \"racks\" out to have as many as needed",
                                             n_ranks, cluster.racks, cluster.hosts_per_rack, cluster.ranks_per_host)};
  for (const Exception& exception : cluster.exceptions)
    if (exception.rank >= n_ranks)
      return Error{
          Code::kInvalidUsage,
          format(
              "the topology has an exception for rank %d, but there are only %d ranks; remove it, or give more ranks",
              exception.rank, n_ranks)};
  return Network(std::move(cluster), n_ranks);
}

Network::Network(Cluster cluster, int n_ranks)
    : cluster_(std::move(cluster)),
      n_ranks_(n_ranks),
      slowdown_(static_cast<size_t>(n_ranks), 1),
      starts_ns_(static_cast<size_t>(n_ranks), 0),
      dies_ns_(static_cast<size_t>(n_ranks), kNever) {
  const auto add = [&](double bytes_per_second) { wires_.insert(wires_.end(), 2, per_ns(bytes_per_second)); };
  for (int rank = 0; rank < n_ranks; rank++) add(cluster_.local.bytes_per_second);
  for (int host = 0; host < n_hosts(); host++)
    for (int index = 0; index < cluster_.nics_per_host; index++) add(cluster_.nic_bytes_per_second(host, index));
  for (int rack = 0; n_racks() > 1 && rack < n_racks(); rack++) add(cluster_.rack_bytes_per_second(rack));
  for (const Exception& exception : cluster_.exceptions) except(exception);
}

void Network::except(const Exception& exception) {
  if (exception.from_host >= 0) {
    pairs_[{exception.from_host, exception.to_host}] = static_cast<int>(wires_.size());
    wires_.push_back(per_ns(*exception.bytes_per_second));
  }
  for (int rank = 0; rank < n_ranks_; rank++) {
    if (rank != exception.rank && host_of(rank) != exception.host) continue;
    slowdown_[static_cast<size_t>(rank)] *= exception.slowdown.value_or(1);
    starts_ns_[static_cast<size_t>(rank)] += exception.starts_late_ns.value_or(0);
    double& dies = dies_ns_[static_cast<size_t>(rank)];
    dies = std::min(dies, exception.dies_ns.value_or(kNever));
  }
}

int Network::nic_of(int rank) const {
  return rank % cluster_.ranks_per_host * cluster_.nics_per_host / cluster_.ranks_per_host;
}

Route Network::route(int from, int to) const {
  const int here = host_of(from), there = host_of(to);
  const Conduit& way = here == there ? cluster_.local : cluster_.nic;
  Route route{{}, 0, way.latency_ns, way.message_ns, way.byte_ns};
  const auto add = [&](int wire) { route.wires[static_cast<size_t>(route.n_wires++)] = wire; };
  if (here == there) {
    add(port(from, false));
    add(port(to, true));
    return route;
  }
  add(nic(here, nic_of(from), false));
  if (rack_of(here) != rack_of(there)) {
    add(uplink(rack_of(here), false));
    add(uplink(rack_of(there), true));
    route.latency_ns += cluster_.rack.latency_ns;
  }
  if (const auto pair = pairs_.find({here, there}); pair != pairs_.end()) add(pair->second);
  add(nic(there, nic_of(to), true));
  return route;
}

int Network::period() const {
  if (!cluster_.exceptions.empty() || cluster_.cpus.are_shared) return n_ranks_;
  return n_racks() > 1 ? cluster_.ranks_per_rack() : cluster_.ranks_per_host;
}

Route Network::route(int from, int to, int n_first) const {
  Route made = route(from, to);
  for (int& wire : made.wires) wire = first_wire(wire, n_first);
  return made;
}

int Network::first_wire(int wire, int n_first) const {
  if (n_first == n_ranks_) return wire;
  const int direction = wire % 2, nics = cluster_.nics_per_host, hosts = n_first / cluster_.ranks_per_host;
  int index = wire / 2;
  if (index < n_ranks_) return port(index % n_first, direction);
  index -= n_ranks_;
  if (index < n_hosts() * nics) return nic(index / nics % hosts, index % nics, direction);
  return uplink((index - n_hosts() * nics) % std::max(1, hosts / cluster_.hosts_per_rack), direction);
}

std::string Network::wire_name(int wire) const {
  for (const auto& [hosts, number] : pairs_)
    if (number == wire) return format("host %d to host %d", hosts.first, hosts.second);
  const char* direction = wire % 2 == 0 ? "out" : "in";
  int index = wire / 2;
  if (index < n_ranks_) return format("rank %d's port, %s", index, direction);
  index -= n_ranks_;
  const int nics = cluster_.nics_per_host;
  if (index < n_hosts() * nics) return format("host %d's NIC %d, %s", index / nics, index % nics, direction);
  return format("rack %d, %s", index - n_hosts() * nics, direction);
}

Layout Network::layout() const {
  std::vector<RankLocation> locations(static_cast<size_t>(n_ranks_));
  for (int rank = 0; rank < n_ranks_; rank++) {
    const int host = host_of(rank);
    RankLocation& location = locations[static_cast<size_t>(rank)];
    memcpy(location.host.bytes, &host, sizeof host);
    location.rack = static_cast<uint32_t>(rack_of(host));
    location.bytes_per_second = static_cast<uint64_t>(cluster_.host_bytes_per_second(host));
  }
  return lay_out(locations);
}

MessageSizes Network::sizes() const {
  const auto hosts = static_cast<size_t>(n_hosts());
  const bool has_rdma = hosts > 1 && cluster_.links.rdma, divides = cluster_.nics_per_host > 1;
  MessageSizes sizes =
      usual_sizes({hosts, cluster_.links.shares_memory, has_rdma, divides, under_way_bytes(facts_of(*this)), true});
  if (cluster_.links.slot_bytes > 0) sizes.slot_bytes = cluster_.links.slot_bytes;
  if (cluster_.links.slots > 0) sizes.slots = cluster_.links.slots;
  return sizes;
}

Facts facts_of(const Network& network) {
  const Cluster& cluster = network.cluster();
  const int here = cluster.cpus.are_shared ? network.n_ranks() : std::min(cluster.ranks_per_host, network.n_ranks());
  const int cpus = cluster.cpus.per_host > 0 ? cluster.cpus.per_host : here;
  Facts facts{.n_ranks = network.n_ranks(),
              .machine = {here, cpus, cpus},
              .shares_memory = cluster.links.shares_memory,
              .has_rdma = cluster.links.rdma,
              .racks = {.bytes_per_second = static_cast<uint64_t>(cluster.rack_bytes_per_second()),
                        .latency_ns = static_cast<uint64_t>(cluster.rack.latency_ns)},
              .wire_latency_ns = static_cast<uint64_t>(cluster.nic.latency_ns)};
  add_network(network.layout(), &facts);
  return facts;
}

}  // namespace tutti::sim
