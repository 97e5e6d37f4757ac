// topology: what the machine looks like, and where each rank runs. This header: a machine as a tree of parts, found in
// sysfs (ranks) or through hwloc (its devices, and files). Plain values; any thread.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tutti {

// Which CPUs of a machine, by their number: as many as any Linux for x86 has (NR_CPUS).
using CpuSet = std::bitset<8192>;

// A part that holds others: a package its NUMA nodes, a node its caches, a cache the cores that share it. Devices stand
// last, in the part that they are nearest to.
struct Part {
  enum class Kind : uint8_t { kMachine, kPackage, kNode, kGroup, kCache, kCore, kCpu, kDevice };
  Kind kind = Kind::kMachine;
  std::string name;    // "NUMA node 1"
  std::string detail;  // a model, a link's speed
  std::string bus;     // of a PCI device: "0000:1a:00.0"
  uint64_t bytes = 0;  // of a cache or a node's memory
  CpuSet cpus;
  std::vector<Part> parts;

  // Both, for people.
  std::string details() const { return detail + (bus.empty() ? "" : ", PCI " + bus); }
};

struct Machine {
  Part whole;
  std::string source;  // for people: how it was found
};

// What ranks need to know: the file that TUTTI_TOPO_FILE names, else this machine without its devices, looked for once
// per process, in sysfs. Errors: kInvalidUsage (the file cannot be read, or is no topology).
Result<std::shared_ptr<const Machine>> machine();
// With devices and their places, through hwloc where the build has it, which takes longer.
Result<Machine> discover_all();
// hwloc's XML. Errors name the file and the remedy: kInvalidUsage (it cannot be read, it is no topology, this build has
// no hwloc).
Result<Machine> read_machine(const std::string& path);
// hwloc's short form, "pack:2 numa:2 core:8 pu:1": for trials. kInvalidUsage as above.
Result<Machine> synthetic_machine(const std::string& description);
// Writes what discover_all() finds as XML; "%h" in the path becomes the host's name. A file is replaced as a whole or
// stays as it was. kSystemError: it cannot be written; kInvalidUsage: this build has no hwloc.
Result<void> dump_machine(const std::string& path);

// The CPUs this thread may run on now, one at least.
CpuSet usable_cpus();

// The way from the whole machine to the smallest part that has all of `cpus`, by the parts' numbers among their
// siblings. Empty where that is the machine itself, or where it lacks one of them.
std::vector<uint32_t> path_to(const Machine& machine, const CpuSet& cpus);
// The parts on the way, without the whole. Ends early where the machine has no such part.
std::vector<const Part*> parts_on(const Machine& machine, std::span<const uint32_t> path);
// "package 0, NUMA node 1, core 9"; "anywhere" for an empty path.
std::string place_name(const Machine& machine, std::span<const uint32_t> path);

// Of the largest cache, what its CPUs may count on; 8 MiB if none is known.
uint64_t last_level_cache_bytes(const Machine& machine);
// Of the last-level caches that any of `cpus` uses, together; one such cache if none is known.
uint64_t cache_bytes(const Machine& machine, const CpuSet& cpus);

// What travels between ranks: eight CPUs a byte, as far as there are any. Nothing where a byte is of none of CpuSet's.
std::string to_bytes(const CpuSet& cpus);
std::optional<CpuSet> cpus_from_bytes(std::string_view bytes);

// "0-3,8"
std::string to_text(const CpuSet& cpus);

}  // namespace tutti
