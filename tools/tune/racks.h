// Which hosts stand in one rack, by how fast pairs of them are. A pure function of what it asks for.
#pragma once

#include <functional>
#include <vector>

#include "../perf/status.h"

namespace tutti::tune {

struct Racks {
  std::vector<std::vector<int>> racks;   // hosts by number, racks by their first ones
  std::vector<double> bytes_per_second;  // the most that each host had with any other one
};

// What a network's other traffic and the machines' load may take from one of two equal ways.
inline constexpr double kAboutAsFast = 0.7;

// `speed` says how many bytes a second get from one host to another one while nobody else sends.
using Speed = std::function<perf::Status(int from, int to, double* bytes_per_second)>;

// Asks for each host and the next one, then for the fastest host and all others: who is about as fast as can be stands
// in its rack. Of the others the same, where "fast" means faster than to any rack before. A host that is faster with
// nobody is a slow one; it counts to the smallest rack. At most hosts x (racks + slow hosts + 1) questions.
perf::Status find_racks(int n_hosts, const Speed& speed, Racks* found);

}  // namespace tutti::tune
