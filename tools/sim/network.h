// sim: how long the library's own schedules would take on other hosts and networks. None of it is in libtutti.so. This
// header: the graph that messages between ranks cross. A wire is one direction of a rank's port, a NIC or a rack's
// uplink; a route is the wires between two ranks. Ranks fill hosts in order, hosts fill racks. Immutable; any thread.
//
//   rank --port--> rank                                                 on one host
//   rank --NIC--> (switch of the rack) --NIC--> rank                    rank r uses NIC r * nics / ranks of its host
//   rank --NIC--> (switch) --uplink--> (core) --downlink--> (switch) --NIC--> rank
#pragma once

#include <array>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "exec/chunks.h"
#include "plan/cost.h"
#include "topology/cluster.h"
#include "topology/layout.h"

namespace tutti::sim {

struct Route {
  std::array<int, 5> wires{};
  int n_wires = 0;
  double latency_ns = 0, message_ns = 0, byte_ns = 0;

  std::span<const int> used() const { return {wires.data(), static_cast<size_t>(n_wires)}; }
};

class Network {
 public:
  // kInvalidUsage: the cluster has no room for that many ranks.
  static Result<Network> make(Cluster cluster, int n_ranks);

  const Cluster& cluster() const { return cluster_; }
  int n_ranks() const { return n_ranks_; }
  int n_hosts() const { return (n_ranks_ + cluster_.ranks_per_host - 1) / cluster_.ranks_per_host; }
  int host_of(int rank) const { return rank / cluster_.ranks_per_host; }
  int rack_of(int host) const { return host / cluster_.hosts_per_rack; }
  Layout layout() const;

  Route route(int from, int to) const;
  // The wire of the first ranks that this one is like. Every wire has one if n_first is a multiple of period().
  int first_wire(int wire, int n_first) const;
  Route route(int from, int to, int n_first) const;
  // After how many ranks the network repeats itself; n_ranks(): nowhere.
  int period() const;
  const std::vector<double>& wires() const { return wires_; }  // bytes per nanosecond
  double burst_bytes(int wire) const {
    return wire >= nic(0, 0, false) && wire < nic(n_hosts(), 0, false) ? cluster_.nic.burst_bytes : 0;
  }
  std::string wire_name(int wire) const;
  double slowdown(int rank) const { return slowdown_[static_cast<size_t>(rank)]; }
  double starts_ns(int rank) const { return starts_ns_[static_cast<size_t>(rank)]; }
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  double dies_ns(int rank) const { return dies_ns_[static_cast<size_t>(rank)]; }
  // The library's own, unless the cluster says otherwise.
  MessageSizes sizes() const;

 private:
  Network(Cluster cluster, int n_ranks);
  void except(const Exception& exception);
  int n_racks() const { return rack_of(n_hosts() - 1) + 1; }
  // Wires of ports come first, then NICs, then racks, out and in side by side. Wires of single pairs of hosts are last.
  int port(int rank, bool in) const { return 2 * rank + in; }
  int nic(int host, int index, bool in) const { return 2 * (n_ranks_ + host * cluster_.nics_per_host + index) + in; }
  int uplink(int rack, bool in) const { return 2 * (n_ranks_ + n_hosts() * cluster_.nics_per_host + rack) + in; }
  int nic_of(int rank) const;

  Cluster cluster_;
  int n_ranks_;
  std::vector<double> wires_, slowdown_, starts_ns_, dies_ns_;
  std::map<std::pair<int, int>, int> pairs_;  // wires, by pair of hosts
};

// What the planner would know about the network.
Facts facts_of(const Network& network);

}  // namespace tutti::sim
