// This header: where the ranks of a group are relative to each other, whatever numbers the launcher gave them. A pure
// function of their locations, so that all ranks that know the same locations compute the same layout. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/socket.h"

namespace tutti {

// Where a rank runs: its host, and the path from the whole machine down to the smallest part that holds all CPUs it may
// use, as the numbers of the parts on it. Empty: anywhere on the host.
struct RankLocation {
  HostId host{};
  std::vector<uint32_t> path;
  // Of the host, the same for all its ranks. All hosts whose rack is unknown have the same number.
  uint32_t rack = 0;
  uint64_t bytes_per_second = 0;
};

struct Layout {
  // All ranks, rack by rack, host by host; on a host, ranks that share a cache, a NUMA node or a package are adjacent.
  // Rings and trees follow it.
  std::vector<int> order;
  // The same, a list for each host, whose first rank is its leader. Racks, and the hosts of each, are in order of their
  // lowest ranks.
  std::vector<std::vector<int>> hosts;
  std::vector<int> hosts_of_rack;
  std::vector<uint64_t> bytes_per_second;  // of each host
  // Numbers of hosts with less than half the speed of the median host: a ring would send almost twice the data through
  // them, and all others would wait.
  std::vector<int> slow_hosts;

  int host_of(int rank) const;  // the host's number
};

// Ranks with equal locations are in order of rank.
Layout lay_out(std::span<const RankLocation> locations);
// All on one host, in order of rank.
Layout flat_layout(int n_ranks);
// The ranks of each rack, host after host.
std::vector<std::vector<int>> by_rack(const Layout& layout);
// "0 2 | 1 3 || 4": hosts are separated by one bar, racks by two.
std::string to_text(const Layout& layout);

}  // namespace tutti
