// This header: how the ranks of a group stand to each other, whatever numbers the launcher gave them. A pure function
// of where each of them sits, so that all ranks that know the same locations compute the same layout. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/socket.h"

namespace tutti {

// Where a rank sits: its host, and there the way from the whole machine down to the smallest part that holds all CPUs
// it may use, as the numbers of the parts on the way. Empty: anywhere on the host.
struct RankLocation {
  HostId host{};
  std::vector<uint32_t> path;
  // Of the host, as all its ranks should know. Hosts whose rack nobody knows have the same number.
  uint32_t rack = 0;
  uint64_t bytes_per_second = 0;
};

struct Layout {
  // All ranks, rack after rack, host after host; on a host so that ranks stand together that share a cache, a NUMA
  // node, a package. Rings and trees follow it.
  std::vector<int> order;
  // The same, host by host. The first rank of each is its leader. Racks, and the hosts of each, are in order of their
  // lowest ranks.
  std::vector<std::vector<int>> hosts;
  std::vector<int> hosts_of_rack;
  std::vector<uint64_t> bytes_per_second;  // of each host
  // Numbers of hosts that send less than half of what the median host does: a ring would wait for them with twice the
  // bytes that they have.
  std::vector<int> slow_hosts;

  int host_of(int rank) const;  // its number
};

// Ranks with equal locations stand in order of rank.
Layout lay_out(std::span<const RankLocation> locations);
// All on one host, in order of rank.
Layout flat_layout(int n_ranks);
// The ranks of each rack, host after host.
std::vector<std::vector<int>> by_rack(const Layout& layout);
// "0 2 | 1 3 || 4": hosts are divided by bars, racks by two.
std::string to_text(const Layout& layout);

}  // namespace tutti
