// This header: the ways to find a machine's parts, for machine.cpp. Each works separately, so that all can be tested on
// any machine.
#pragma once

#include <string>
#include <vector>

#include "topology/machine.h"

namespace tutti {

// Packages, NUMA nodes, caches from the second level on and cores, from the files under `sys`; with `devices` also
// network devices and the nodes' memory sizes. What is missing there is left out, except the CPUs that this thread may
// use.
Machine discover_in_sysfs(const std::string& sys, bool devices);

struct NetworkDevice {
  std::string name;
  int megabits = 0;         // per second; 0: unknown
  bool is_hardware = true;  // else virtual: a bridge, one end of a veth pair
};
// The devices that are up or hardware, without lo.
std::vector<NetworkDevice> network_devices(const std::string& sys);
// "NIC, 1000 Mb/s"
std::string describe(const NetworkDevice& device);

// Through hwloc, with all devices; kInvalidUsage if this build has no hwloc.
Result<Machine> discover_with_hwloc();
// hwloc's XML of this machine, or of the one in the XML file `from` if that is not empty.
Result<std::string> hwloc_xml(const std::string& from);

}  // namespace tutti
