#include "topology/machine.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <thread>

#include "base/at_fork.h"
#include "base/env.h"
#include "base/file.h"
#include "base/log.h"
#include "base/socket.h"
#include "topology/discover.h"

namespace tutti {
namespace {

// The one in the file that TUTTI_TOPO_FILE names.
Result<Machine> named_machine() {
  auto read = read_machine(env_string("TUTTI_TOPO_FILE"));
  if (!read) read.error().message.insert(0, "TUTTI_TOPO_FILE: ");
  return read;
}

MadeOnce<std::shared_ptr<const Machine>> g_machine;  // this one

// As much of a cache as its CPUs can count on: a virtual machine with two CPUs shows all of its host's cache, 480 MiB,
// which neighbours share. There, with two and with four ranks, writing results past the cache took .54 to 1.1 of the
// time for 20 MB, .52 to .78 for 70 MB, .98 to 1.6 for 10 MB.
uint64_t usable_bytes(const Part& cache) {
  constexpr uint64_t kMostBytesPerCpu = 40 << 20;
  return std::min(cache.bytes, kMostBytesPerCpu * std::max<uint64_t>(cache.cpus.count(), 1));
}

// The total of the outermost caches that have any of `cpus`.
uint64_t caches_of(const Part& part, const CpuSet& cpus) {
  if ((part.cpus & cpus).none()) return 0;
  if (part.kind == Part::Kind::kCache) return usable_bytes(part);
  uint64_t bytes = 0;
  for (const Part& inner : part.parts) bytes += caches_of(inner, cpus);
  return bytes;
}

uint64_t largest_cache(const Part& part) {
  uint64_t bytes = part.kind == Part::Kind::kCache ? usable_bytes(part) : 0;
  for (const Part& inner : part.parts) bytes = std::max(bytes, largest_cache(inner));
  return bytes;
}

}  // namespace

uint64_t last_level_cache_bytes(const Machine& machine) {
  const uint64_t bytes = largest_cache(machine.whole);
  return bytes > 0 ? bytes : 8 << 20;
}

uint64_t cache_bytes(const Machine& machine, const CpuSet& cpus) {
  const uint64_t bytes = caches_of(machine.whole, cpus);
  return bytes > 0 ? bytes : last_level_cache_bytes(machine);
}

bool share_cache(const Machine& machine, const CpuSet& cpus) {
  return std::ranges::any_of(parts_on(machine, path_to(machine, cpus)),
                             [](const Part* part) { return part->kind == Part::Kind::kCache; });
}

CpuSet usable_cpus() {
  CpuSet cpus;
  // Several sets, because a kernel for more CPUs than one set holds rejects a single one.
  std::array<cpu_set_t, CpuSet().size() / CPU_SETSIZE> set{};
  if (sched_getaffinity(0, sizeof set, set.data()) == 0)
    for (size_t cpu = 0, left = static_cast<size_t>(CPU_COUNT_S(sizeof set, set.data())); left > 0; cpu++)
      if (CPU_ISSET_S(cpu, sizeof set, set.data())) cpus[cpu] = true, left--;
  // The call fails if the machine has more CPUs than the set holds: then assume the first ones.
  if (cpus.none())
    for (size_t cpu = 0; cpu < std::clamp<size_t>(std::thread::hardware_concurrency(), 1, cpus.size()); cpu++)
      cpus[cpu] = true;
  return cpus;
}

Result<std::shared_ptr<const Machine>> machine() {
  if (env_is_set("TUTTI_TOPO_FILE")) {
    TUTTI_TRY_ASSIGN(Machine read, named_machine());
    return std::make_shared<const Machine>(std::move(read));
  }
  // hwloc finds the same, but takes 3.6 ms of CPU time, half of a rank's creation.
  return g_machine.get([] { return std::make_shared<const Machine>(discover_in_sysfs("/sys", false)); });
}

Result<Machine> discover_all() {
  if (env_is_set("TUTTI_TOPO_FILE")) return named_machine();
  auto found = discover_with_hwloc();
  if (found) return found;
  log(LogLevel::kInfo, "topology from sysfs: %s", found.error().message.c_str());
  return discover_in_sysfs("/sys", true);
}

Result<void> dump_machine(const std::string& path) {
  std::string target = path;
  if (const size_t at = target.find("%h"); at != std::string::npos) target.replace(at, 2, host_name());
  TUTTI_TRY_ASSIGN(const std::string xml, hwloc_xml(env_string("TUTTI_TOPO_FILE")));
  const auto written = write_file(target, xml);
  if (written) return {};
  return system_error("the topology cannot be written to " + target +
                          " (TUTTI_TOPO_DUMP: name a file in a folder with room, or unset it)",
                      written.error().sys_errno);
}

std::vector<uint32_t> path_to(const Machine& machine, const CpuSet& cpus) {
  std::vector<uint32_t> path;
  if ((cpus & ~machine.whole.cpus).any() || cpus.none()) return path;
  const auto holds = [&](const Part& part) { return part.kind != Part::Kind::kDevice && (cpus & ~part.cpus).none(); };
  for (const Part* at = &machine.whole;;) {
    const auto next = std::find_if(at->parts.begin(), at->parts.end(), holds);
    if (next == at->parts.end()) return path;
    path.push_back(static_cast<uint32_t>(next - at->parts.begin()));
    at = &*next;
  }
}

std::vector<const Part*> parts_on(const Machine& machine, std::span<const uint32_t> path) {
  std::vector<const Part*> parts;
  for (const Part* at = &machine.whole; parts.size() < path.size();) {
    const uint32_t number = path[parts.size()];
    if (number >= at->parts.size()) break;
    parts.push_back(at = &at->parts[number]);
  }
  return parts;
}

std::string place_name(const Machine& machine, std::span<const uint32_t> path) {
  std::string text;
  for (const Part* part : parts_on(machine, path)) text.append(text.empty() ? "" : ", ").append(part->name);
  return text.empty() ? "anywhere" : text;
}

std::string to_text(const CpuSet& cpus) {
  std::string text;
  for (size_t first = cpus._Find_first(); first < cpus.size(); first = cpus._Find_next(first)) {
    size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1]) last++;
    text += text.empty() ? "" : ",";
    text += last == first ? std::to_string(first) : format("%zu-%zu", first, last);
    first = last;
  }
  return text;
}

CpuSet cpus_from_text(const std::string& text) {
  CpuSet cpus;
  size_t next = 0;  // no CPU twice: the text may be a stranger's
  char* end = nullptr;
  for (const char* at = text.c_str();; at = end + 1) {
    const size_t first = strtoul(at, &end, 10);
    if (end == at || first < next || first >= cpus.size()) return cpus;
    const size_t last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
    for (next = first; next <= std::min(last, cpus.size() - 1); next++) cpus[next] = true;
    if (*end != ',') return cpus;
  }
}

}  // namespace tutti
