#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "base/file.h"
#include "topology/discover.h"

namespace tutti {
namespace {

// A number such as "3", "32768K"; -1 for anything else.
long long read_number(const std::string& path) {
  long long number = -1;
  return sscanf(first_line(path).c_str(), "%lld", &number) == 1 ? number : -1;
}

// "0-3,8" in the kernel's lists; what makes no sense is left out.
CpuSet parse_cpus(const std::string& list) {
  CpuSet cpus;
  const char* at = list.c_str();
  unsigned first = 0, last = 0;
  for (int used = 0; sscanf(at, "%u%n", &first, &used) == 1; at += *at == ',') {
    at += used;
    last = first;
    if (sscanf(at, "-%u%n", &last, &used) == 1) at += used;
    for (size_t cpu = first; cpu <= std::min<size_t>(last, cpus.size() - 1); cpu++) cpus[cpu] = true;
    if (*at != ',') break;
  }
  return cpus;
}

std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> names;
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

using Kind = Part::Kind;

// The parts that a CPU belongs to, from the outermost on: what is known of it.
std::vector<Part> parts_of(const std::string& sys, size_t cpu, const std::vector<Part>& nodes) {
  const std::string folder = sys + "/devices/system/cpu/cpu" + std::to_string(cpu);
  const auto own = [&](Kind kind, const char* what, long long number, const std::string& list) {
    Part part{.kind = kind, .name = format("%s %lld", what, number)};
    part.cpus = parse_cpus(first_line(folder + list));
    part.cpus[cpu] = true;
    return part;
  };
  std::vector<Part> parts;
  if (const long long id = read_number(folder + "/topology/physical_package_id"); id >= 0)
    parts.push_back(own(Kind::kPackage, "package", id, "/topology/package_cpus_list"));
  for (const Part& node : nodes)
    if (node.cpus[cpu]) parts.push_back(node);
  Part cache{.kind = Kind::kCache};
  for (const std::string& index : entries(folder + "/cache")) {
    const std::string at = "/cache/" + index;
    const long long level = read_number(folder + at + "/level"), kib = read_number(folder + at + "/size");
    if (level < 2 || kib < 0 || (static_cast<uint64_t>(kib) << 10) < cache.bytes) continue;
    cache = own(Kind::kCache, "", level, at + "/shared_cpu_list");
    cache.name = format("L%lld of CPU %zu", level, cache.cpus._Find_first());
    cache.bytes = static_cast<uint64_t>(kib) << 10;
  }
  if (cache.bytes > 0) parts.push_back(cache);
  Part core = own(Kind::kCore, "core", static_cast<long long>(cpu), "/topology/core_cpus_list");
  core.name = format("core of CPU %zu", core.cpus._Find_first());
  parts.push_back(core);
  // The kernel may count a part's CPUs differently (a node that spans packages): then what is outer counts.
  for (size_t i = 1; i < parts.size(); i++) parts[i].cpus &= parts[i - 1].cpus;
  return parts;
}

std::vector<Part> memory_nodes(const std::string& sys) {
  std::vector<Part> nodes;
  const std::string folder = sys + "/devices/system/node/";
  for (const std::string& name : entries(folder)) {
    unsigned number = 0;
    if (sscanf(name.c_str(), "node%u", &number) != 1) continue;
    Part node{.kind = Kind::kNode, .name = format("NUMA node %u", number)};
    node.cpus = parse_cpus(first_line(folder + name + "/cpulist"));
    std::ifstream meminfo(folder + name + "/meminfo");
    for (std::string line; std::getline(meminfo, line);) {
      unsigned long long kib = 0;
      if (sscanf(line.c_str(), "Node %*u MemTotal: %llu", &kib) == 1) node.bytes = kib << 10;
    }
    nodes.push_back(node);
  }
  return nodes;
}

void add(Part& whole, const std::vector<Part>& way) {
  Part* at = &whole;
  for (const Part& part : way) {
    const auto same = std::find_if(at->parts.begin(), at->parts.end(),
                                   [&](const Part& p) { return p.kind == part.kind && p.name == part.name; });
    at = same == at->parts.end() ? &at->parts.emplace_back(part) : &*same;
  }
}

}  // namespace

std::vector<NetworkDevice> network_devices(const std::string& sys) {
  std::vector<NetworkDevice> devices;
  const std::string folder = sys + "/class/net/";
  for (const std::string& name : entries(folder)) {
    struct stat there {};
    NetworkDevice device{name, 0, stat((folder + name + "/device").c_str(), &there) == 0};
    const bool is_up = first_line(folder + name + "/operstate") == "up";
    if (name == "lo" || !(is_up || device.is_hardware)) continue;
    device.megabits = static_cast<int>(std::max(read_number(folder + name + "/speed"), 0LL));
    devices.push_back(device);
  }
  for (const std::string& name : entries(sys + "/class/infiniband")) {
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
  machine.source = "sysfs: packages, NUMA nodes, last-level caches, cores; without PCI devices and GPUs";
  machine.whole.name = "machine";
  CpuSet& cpus = machine.whole.cpus;
  cpus = parse_cpus(first_line(sys + "/devices/system/cpu/online")) | usable_cpus();
  const std::vector<Part> nodes = memory_nodes(sys);
  for (size_t cpu = 0; cpu < cpus.size(); cpu++) {
    if (!cpus[cpu]) continue;
    const std::vector<Part> way = parts_of(sys, cpu, nodes);
    add(machine.whole, way);
  }
  if (const uint64_t bytes = largest_cache(machine.whole); bytes > 0) machine.last_level_cache_bytes = bytes;
  for (const NetworkDevice& device : devices ? network_devices(sys) : std::vector<NetworkDevice>())
    machine.whole.parts.push_back({.kind = Kind::kDevice, .name = device.name, .detail = describe(device)});
  return machine;
}

}  // namespace tutti
