// Which hosts are in one rack, by how fast pairs of them are. A pure function of the speeds that it asks for.
#pragma once

#include <functional>
#include <vector>

#include "../perf/status.h"

namespace tutti::tune {

struct Racks {
  std::vector<std::vector<int>> racks;   // hosts by number, racks by their first ones
  std::vector<double> bytes_per_second;  // the most that each host reached with any other one
};

// What other traffic and the machines' load may leave of the speed of one of two equal paths.
inline constexpr double kAboutAsFast = 0.7;

// `speed` says how many bytes a second get from one host to another one while nobody else sends.
using Speed = std::function<perf::Status(int from, int to, double* bytes_per_second)>;

// Asks for each host and the next one, then for the fastest host and all others: those about as fast as can be are in
// its rack. The rest are split in the same way, where "fast" means faster than to any earlier rack. A host that is
// faster with no other is a slow one; it counts towards the smallest rack. At most hosts x (racks + slow hosts + 1)
// questions.
perf::Status find_racks(int n_hosts, const Speed& speed, Racks* found);

}  // namespace tutti::tune
