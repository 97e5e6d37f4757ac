// Networks for which the tests know the answers.
#pragma once

#include <cmath>
#include <ostream>

#include "tools/sim/compare.h"

namespace tutti::sim::testing {

// A number up to rounding, or up to what a formula leaves out.
struct About {
  double value, tolerance;
  friend bool operator==(double number, const About& about) {
    return std::abs(number - about.value) <= about.tolerance * std::abs(about.value);
  }
  friend std::ostream& operator<<(std::ostream& out, const About& about) { return out << "about " << about.value; }
};
inline About about(double value, double tolerance = 1e-9) {
  return {value, tolerance};
}

inline constexpr double kLatencyNs = 2000, kBytesPerNs = 12.5;

// One rank on each host, all hosts in one rack; only the network has costs.
inline Cluster plain_cluster() {
  Cluster cluster;
  cluster.racks = 1;
  cluster.hosts_per_rack = 4096;
  cluster.local = {kBytesPerNs * 1e9, kLatencyNs, 0, 0};
  cluster.nic = cluster.local;
  cluster.links.rdma = true;  // makes all message sizes equally good
  cluster.links.slots = 4;
  cluster.links.slot_bytes = 64 << 20;
  return cluster;
}

// Two racks of four hosts with three ranks and two NICs each.
inline Cluster uneven_cluster() {
  Cluster cluster = plain_cluster();
  cluster.racks = 2;
  cluster.hosts_per_rack = 4;
  cluster.ranks_per_host = 3;
  cluster.nics_per_host = 2;
  cluster.cpus.per_host = 2;
  cluster.local = {40e9, 300, 50, 0.01};
  cluster.nic.message_ns = 400;
  cluster.rack = {20e9, 700, 0, 0};
  cluster.cpus.summed_byte_ns = 0.02;
  cluster.links.slot_bytes = 64 << 10;
  return cluster;
}

inline Network network_of(Cluster cluster, int n_ranks) {
  auto network = Network::make(std::move(cluster), n_ranks);
  return std::move(network).value();
}

}  // namespace tutti::sim::testing
