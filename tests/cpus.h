// Which CPUs a test's thread runs on.
#pragma once

#include <sched.h>

#include <vector>

namespace tutti_test {

// The CPUs that the calling thread may use, in order.
inline std::vector<int> cpus_here() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  return cpus;
}

// Restricts the calling thread to these CPUs; false if that is impossible.
inline bool stay_on(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace tutti_test
