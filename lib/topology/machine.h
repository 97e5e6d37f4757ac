// topology: what the machine looks like, and where each rank runs. This header: a machine as a tree of parts, read from
// sysfs (for ranks) or through hwloc (for devices, and from files). Plain values; any thread.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace tutti {

// A set of a machine's CPUs, by number: as many as any Linux for x86 has (NR_CPUS).
using CpuSet = std::bitset<8192>;

// A part that holds others: a package its NUMA nodes, a node its caches, a cache the cores that share it. Devices come
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

  // Detail and bus, for people.
  std::string details() const { return detail + (bus.empty() ? "" : ", PCI " + bus); }
};

struct Machine {
  Part whole;
  std::string source;  // for people: how it was found
};

// What ranks need to know: the topology in the file that TUTTI_TOPO_FILE names, else this machine without its devices,
// read from sysfs once per process. Errors: kInvalidUsage (the file cannot be read, or is not a topology).
Result<std::shared_ptr<const Machine>> machine();
// With devices and their places, through hwloc if the build has it, which takes longer.
Result<Machine> discover_all();
// Reads hwloc's XML. Errors name the file and the remedy: kInvalidUsage (it cannot be read, it is not a topology, this
// build has no hwloc).
Result<Machine> read_machine(const std::string& path);
// hwloc's short form, "pack:2 numa:2 core:8 pu:1": for trials. kInvalidUsage as above.
Result<Machine> synthetic_machine(const std::string& description);
// Writes what discover_all() finds as XML; "%h" in the path becomes the host's name. A file is replaced atomically.
// kSystemError: it cannot be written; kInvalidUsage: this build has no hwloc.
Result<void> dump_machine(const std::string& path);

// The CPUs that this thread may run on now, at least one.
CpuSet usable_cpus();

// The path from the whole machine to the smallest part that has all of `cpus`, as the parts' numbers among their
// siblings. Empty if that is the machine itself, or if the machine lacks any of them.
std::vector<uint32_t> path_to(const Machine& machine, const CpuSet& cpus);
// The parts on the path, without the whole machine. Ends early if the machine has no such part.
std::vector<const Part*> parts_on(const Machine& machine, std::span<const uint32_t> path);
// "package 0, NUMA node 1, core 9"; "anywhere" for an empty path.
std::string place_name(const Machine& machine, std::span<const uint32_t> path);

// The share of the largest cache that its CPUs may count on; 8 MiB if no cache is known.
uint64_t last_level_cache_bytes(const Machine& machine);
// The last-level caches that any of `cpus` uses, together; last_level_cache_bytes() if none is known.
uint64_t cache_bytes(const Machine& machine, const CpuSet& cpus);
// Whether all of them use the same one.
bool share_cache(const Machine& machine, const CpuSet& cpus);

// "0-3,8", as in the kernel's lists. Numbers go up: from where the text makes no sense it is ignored.
std::string to_text(const CpuSet& cpus);
CpuSet cpus_from_text(const std::string& text);

}  // namespace tutti
