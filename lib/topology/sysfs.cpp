#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>

#include "base/file.h"
#include "base/sort.h"
#include "topology/discover.h"

namespace tutti {
namespace {

// A number such as "3" or "32768K", without its unit; -1 for anything else.
long long read_number(const std::string& path) {
  long long number = -1;
  return sscanf(first_line(path).c_str(), "%lld", &number) == 1 ? number : -1;
}

using Kind = Part::Kind;

constexpr char kNodes[] = "nodes";

// The parts that have been read already, by the name of the file that lists their CPUs: 256 CPUs have some 5,000 files.
using Known = std::map<std::string, std::vector<Part>>;

// The known parts that a CPU belongs to, outermost first. Not instruction caches and first-level ones, which belong to
// one core.
std::vector<Part> parts_of(const std::string& sys, size_t cpu, Known& known) {
  const std::string folder = sys + "/devices/system/cpu/cpu" + std::to_string(cpu);
  std::vector<Part> parts;
  const auto find = [&](const std::string& list) {
    const std::vector<Part>& all = known[list];
    const auto found = std::find_if(all.begin(), all.end(), [&](const Part& part) { return part.cpus[cpu]; });
    if (found != all.end()) parts.push_back(*found);
    return found != all.end();
  };
  const auto add = [&](Part part, const std::string& list, const std::string& before_linux_5_3 = "") {
    part.cpus = cpus_from_text(first_line(folder + list));
    if (part.cpus.none()) part.cpus = cpus_from_text(first_line(folder + before_linux_5_3));
    part.cpus[cpu] = true;
    known[list].push_back(part);
    parts.push_back(part);
  };
  if (const char* const list = "/topology/package_cpus_list";
      !find(list) && read_number(folder + "/topology/physical_package_id") >= 0)
    add({.kind = Kind::kPackage, .name = "package"}, list, "/topology/core_siblings_list");
  find(kNodes);
  constexpr int kUsualCaches = 4, kMostCaches = 8;
  for (int index = 0; index < kMostCaches; index++) {
    const std::string at = format("/cache/index%d", index), list = at + "/shared_cpu_list";
    if (find(list)) continue;
    const long long level = read_number(folder + at + "/level");
    if (level < 0 && index >= kUsualCaches) break;
    if (level < 2) continue;
    const long long kib = read_number(folder + at + "/size");
    if (kib < 0 || first_line(folder + at + "/type") == "Instruction") continue;
    const uint64_t bytes = static_cast<uint64_t>(kib) << 10;
    add({.kind = Kind::kCache, .name = format("L%lld", level), .bytes = bytes}, list);
  }
  if (const char* const list = "/topology/core_cpus_list"; !find(list))
    add({.kind = Kind::kCore, .name = "core"}, list, "/topology/thread_siblings_list");
  if (parts.back().cpus.count() > 1) {
    parts.push_back({.kind = Kind::kCpu, .name = format("CPU %zu", cpu)});
    parts.back().cpus[cpu] = true;
  }
  sort_stably(parts, [](const Part& a, const Part& b) {
    const size_t more = a.cpus.count(), less = b.cpus.count();
    return more > less || (more == less && a.kind == Kind::kCache && b.kind == Kind::kCache && a.name > b.name);
  });
  // The kernel may list a part's CPUs differently (a node that spans packages): then the outer part takes precedence.
  for (size_t i = 1; i < parts.size(); i++) parts[i].cpus &= parts[i - 1].cpus;
  return parts;
}

std::vector<Part> memory_nodes(const std::string& sys, bool with_bytes) {
  std::vector<Part> nodes;
  const std::string folder = sys + "/devices/system/node/";
  for (const std::string& name : entries_of(folder)) {
    unsigned number = 0;
    if (sscanf(name.c_str(), "node%u", &number) != 1) continue;
    Part node{.kind = Kind::kNode, .name = format("NUMA node %u", number)};
    node.cpus = cpus_from_text(first_line(folder + name + "/cpulist"));
    nodes.push_back(node);
    if (!with_bytes) continue;
    std::ifstream meminfo(folder + name + "/meminfo");
    for (std::string line; std::getline(meminfo, line);) {
      unsigned long long kib = 0;
      if (sscanf(line.c_str(), "Node %*u MemTotal: %llu", &kib) == 1) nodes.back().bytes = kib << 10;
    }
  }
  return nodes;
}

void add(Part& whole, const std::vector<Part>& way) {
  Part* at = &whole;
  for (const Part& part : way) {
    const auto same =
        std::ranges::find_if(at->parts, [&](const Part& p) { return p.kind == part.kind && p.cpus == part.cpus; });
    at = same == at->parts.end() ? &at->parts.emplace_back(part) : &*same;
  }
}

// "core 5", numbered as in hwloc; nodes and CPUs have the kernel's numbers already.
void number(std::vector<Part>& parts, std::map<std::string, int>& counts) {
  for (Part& part : parts) {
    if (part.kind != Kind::kNode && part.kind != Kind::kCpu) part.name += format(" %d", counts[part.name]++);
    number(part.parts, counts);
  }
}

}  // namespace

std::vector<NetworkDevice> network_devices(const std::string& sys) {
  std::vector<NetworkDevice> devices;
  const std::string folder = sys + "/class/net/";
  for (const std::string& name : entries_of(folder)) {
    struct stat there {};
    NetworkDevice device{name, 0, stat((folder + name + "/device").c_str(), &there) == 0};
    const bool is_up = first_line(folder + name + "/operstate") == "up";
    if (name == "lo" || !(is_up || device.is_hardware)) continue;
    device.megabits = static_cast<int>(std::max(read_number(folder + name + "/speed"), 0LL));
    devices.push_back(device);
  }
  for (const std::string& name : entries_of(sys + "/class/infiniband")) {
    const long long gigabits = read_number(sys + "/class/infiniband/" + name + "/ports/1/rate");
    devices.push_back({name, static_cast<int>(std::max(gigabits, 0LL) * 1000), true});
  }
  return devices;
}

std::string describe(const NetworkDevice& device) {
  std::string text = device.is_hardware ? "NIC" : "virtual NIC";
  if (device.megabits > 0) text += format(", %d Mb/s", device.megabits);
  return text;
}

Machine discover_in_sysfs(const std::string& sys, bool devices) {
  Machine machine;
  machine.source = "sysfs, without PCI devices and GPUs";
  machine.whole.name = "machine";
  CpuSet& cpus = machine.whole.cpus;
  cpus = cpus_from_text(first_line(sys + "/devices/system/cpu/online")) | usable_cpus();
  Known known{{kNodes, memory_nodes(sys, devices)}};
  for (size_t cpu = cpus._Find_first(); cpu < cpus.size(); cpu = cpus._Find_next(cpu))
    add(machine.whole, parts_of(sys, cpu, known));
  std::map<std::string, int> counts;
  number(machine.whole.parts, counts);
  for (const NetworkDevice& device : devices ? network_devices(sys) : std::vector<NetworkDevice>())
    machine.whole.parts.push_back({.kind = Kind::kDevice, .name = device.name, .detail = describe(device)});
  return machine;
}

}  // namespace tutti
