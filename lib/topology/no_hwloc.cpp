#include "topology/discover.h"

namespace tutti {
namespace {

Error without(const std::string& what) {
  return {Code::kInvalidUsage, what + ": this build has no hwloc; install libhwloc-dev and build with -Dhwloc=enabled"};
}

}  // namespace

Result<Machine> discover_with_hwloc() {
  return without("packages, NUMA nodes, caches and network devices only");
}
Result<Machine> read_machine(const std::string& path) {
  return without("the topology in " + path + " cannot be read");
}
Result<Machine> synthetic_machine(const std::string& description) {
  return without("the topology '" + description + "' cannot be made");
}
Result<std::string> hwloc_xml(const std::string&) {
  return without("the topology cannot be written as XML (TUTTI_TOPO_DUMP)");
}

}  // namespace tutti
