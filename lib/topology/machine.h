// topology: what the machine looks like. So far: the CPUs a thread may use and the size of the last-level cache,
// through hwloc where the build has it, else sysfs. Pure queries; any thread.
#pragma once

#include <bitset>
#include <cstdint>

namespace tutti {

// Which CPUs of a machine, by their number.
using CpuSet = std::bitset<1024>;

struct Machine {
  uint64_t last_level_cache_bytes = 8 << 20;
};

// Discovered once per process.
const Machine& machine();
// The CPUs this thread may run on now, one at least.
CpuSet usable_cpus();

}  // namespace tutti
