// Which hosts share a rack, from the speeds between pairs of hosts. A pure function of the speeds that it asks for.
#pragma once

#include <functional>
#include <vector>

#include "../perf/status.h"

namespace tutti::tune {

struct Racks {
  std::vector<std::vector<int>> racks;   // hosts by number, racks in the order of their first hosts
  std::vector<double> bytes_per_second;  // the highest speed of each host to any other

  double fastest() const;
  bool is_slow(int host) const;
  // The racks without their slow hosts, if they have others: where bytes pass by a slow host, a rack's cable looks
  // slow.
  std::vector<std::vector<int>> fast_hosts() const;
};

// The share of its speed that one of two equal paths keeps despite other traffic and the machines' load.
inline constexpr double kAboutAsFast = 0.7;

// `speed` returns the bytes per second from one host to another one while no other host sends.
using Speed = std::function<perf::Status(int from, int to, double* bytes_per_second)>;

// Measures each host with the next one, then the fastest host with all others: those about as fast as possible are in
// its rack. The rest are split in the same way, where "fast" means faster than to any earlier rack. A host that is
// faster with no other one is slow; it counts towards the smallest rack. At most hosts x (racks + slow hosts + 1)
// measurements.
perf::Status find_racks(int n_hosts, const Speed& speed, Racks* found);

}  // namespace tutti::tune
