// topology: what the machine looks like. So far: the CPUs this process may use and the size of the last-level cache,
// through hwloc where the build has it, else sysfs. Pure queries; any thread.
#pragma once

#include <cstdint>

namespace tutti {

struct Machine {
  int usable_cpus = 1;  // of this process's affinity mask
  uint64_t last_level_cache_bytes = 8 << 20;
};

// Discovered once per process.
const Machine& machine();
// The CPUs this thread may run on now: the affinity may have changed since.
int usable_cpus();

}  // namespace tutti
