// This header: the ways to find a machine's parts, for machine.cpp. Each stands alone, so that all are tested on any
// machine.
#pragma once

#include <string>
#include <vector>

#include "topology/machine.h"

namespace tutti {

// Packages, NUMA nodes, caches from the second level on, cores and network devices, from the files under `sys`. What is
// missing there is left out; the CPUs that this thread may use are there in any case. With `devices` also how much
// memory nodes have.
Machine discover_in_sysfs(const std::string& sys, bool devices);

struct NetworkDevice {
  std::string name;
  int megabits = 0;         // per second; 0: unknown
  bool is_hardware = true;  // else made by software: a bridge, one end of a pair
};
// Those that are up or real, without lo.
std::vector<NetworkDevice> network_devices(const std::string& sys);
// "NIC, 1000 Mb/s"
std::string describe(const NetworkDevice& device);

// Through hwloc, with all devices; kInvalidUsage where this build has none.
Result<Machine> discover_with_hwloc();
// This machine, or the one in the XML file `from` if that is not empty.
Result<std::string> hwloc_xml(const std::string& from);

}  // namespace tutti
