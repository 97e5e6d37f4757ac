// This header: how the ranks of a group stand to each other, whatever numbers the launcher gave them. A pure function
// of where each of them sits, so that all ranks that know the same seats compute the same layout. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/socket.h"

namespace tutti {

// Where a rank sits: its host, and there the way from the whole machine down to the smallest part that holds all CPUs
// it may use, as the numbers of the parts on the way. Empty: anywhere on the host.
struct Seat {
  HostId host{};
  std::vector<uint32_t> path;
};

struct Layout {
  // All ranks, host after host; on a host so that ranks stand together that share a cache, a NUMA node, a package.
  // Rings and trees follow it.
  std::vector<int> order;
  // The same, host by host, in order of their lowest ranks. The first rank of each is its leader.
  std::vector<std::vector<int>> hosts;
};

// Ranks with equal seats stand in order of rank.
Layout lay_out(std::span<const Seat> seats);
// All on one host, in order of rank.
Layout flat_layout(int n_ranks);
// "0 2 | 1 3": hosts are divided by bars.
std::string to_text(const Layout& layout);

}  // namespace tutti
