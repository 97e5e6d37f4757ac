#include "topology/machine.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>

#ifdef TUTTI_HAVE_HWLOC
#include <hwloc.h>
#endif

namespace tutti {
namespace {

#ifdef TUTTI_HAVE_HWLOC
uint64_t discover_last_level_cache_bytes() {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return 0;
  uint64_t bytes = 0;
  if (hwloc_topology_load(topology) == 0) {
    hwloc_obj_t pu = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, 0);
    for (hwloc_obj_t o = pu; o != nullptr; o = o->parent)
      if (hwloc_obj_type_is_dcache(o->type)) bytes = std::max<uint64_t>(bytes, o->attr->cache.size);
  }
  hwloc_topology_destroy(topology);
  return bytes;
}
#else
uint64_t discover_last_level_cache_bytes() {
  uint64_t best = 0;
  for (int index = 0; index < 8; index++) {
    const std::string path = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size";
    FILE* file = fopen(path.c_str(), "re");
    if (file == nullptr) break;
    unsigned long long kib = 0;  // sysfs always writes "32768K"
    if (fscanf(file, "%lluK", &kib) == 1) best = std::max<uint64_t>(best, kib << 10);
    fclose(file);
  }
  return best;
}
#endif

}  // namespace

CpuSet usable_cpus() {
  CpuSet cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (size_t cpu = 0; cpu < std::min<size_t>(CPU_SETSIZE, cpus.size()); cpu++) cpus[cpu] = CPU_ISSET(cpu, &set);
  // More CPUs than the set has room for: then there are many.
  if (cpus.none())
    for (size_t cpu = 0; cpu < std::clamp<size_t>(std::thread::hardware_concurrency(), 1, cpus.size()); cpu++)
      cpus[cpu] = true;
  return cpus;
}

const Machine& machine() {
  static const Machine found = [] {
    Machine m;
    if (const uint64_t bytes = discover_last_level_cache_bytes(); bytes > 0) m.last_level_cache_bytes = bytes;
    return m;
  }();
  return found;
}

}  // namespace tutti
