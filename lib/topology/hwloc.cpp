// Everything that uses hwloc.
#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>

#include "topology/discover.h"

namespace tutti {
namespace {

using Kind = Part::Kind;

constexpr char kNetworkDevice[] = "TuttiNetworkDevice";  // describe()'s text, kept in the XML

struct Destroy {
  void operator()(hwloc_topology_t raw) const { hwloc_topology_destroy(raw); }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

// `choose_source` tells hwloc what to load instead of this machine, and returns hwloc's result.
template <class ChooseSource>
Result<Topology> load(const std::string& what, ChooseSource choose_source) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return system_error("hwloc", errno);
  Topology t(raw);
  // Ranks of one host may be allowed different CPUs, but must see the same parts in the same order.
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_MISC, HWLOC_TYPE_FILTER_KEEP_ALL);
  // These start GPU drivers or talk to displays; PCI tells enough about a GPU.
  for (const char* component : {"opencl", "gl", "cuda", "rsmi", "levelzero"})
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  const bool is_chosen = choose_source(raw) == 0;
  errno = 0;  // what hwloc leaves there is unrelated to the source
  if (!is_chosen || hwloc_topology_load(raw) != 0)
    return Error{Code::kInvalidUsage, what + (errno != 0 ? std::string(": ") + strerror(errno) : "")};
  return t;
}

// Adds speeds, and devices that hwloc leaves out because they have no hardware here, as in containers.
void add_networks(hwloc_topology_t raw) {
  for (const NetworkDevice& device : network_devices("/sys")) {
    hwloc_obj_t at = nullptr;
    while ((at = hwloc_get_next_osdev(raw, at)) != nullptr)
      if (at->name != nullptr && device.name == at->name) break;
    if (at == nullptr) at = hwloc_topology_insert_misc_object(raw, hwloc_get_root_obj(raw), device.name.c_str());
    if (at != nullptr) hwloc_obj_add_info(at, kNetworkDevice, describe(device).c_str());
  }
}

Result<Topology> load_this() {
  TUTTI_TRY_ASSIGN(Topology t, load("hwloc cannot read this machine's topology", [](hwloc_topology_t) { return 0; }));
  if (hwloc_topology_is_thissystem(t.get())) add_networks(t.get());
  return t;
}

// hwloc crashes on objects that have a set but not its complete counterpart, or the reverse.
bool has_whole_sets(const std::string& path) {
  std::ifstream file(path);
  for (std::string tag; std::getline(file, tag, '>');) {
    const auto has = [&](const char* attribute) { return tag.find(attribute) != std::string::npos; };
    if (!has("<object")) continue;
    if (has(" cpuset=\"") != has(" complete_cpuset=\"") || has(" nodeset=\"") != has(" complete_nodeset=\""))
      return false;
  }
  return true;
}

Result<Topology> load_xml(const std::string& path) {
  const std::string remedy =
      ": give a file that TUTTI_TOPO_DUMP or lstopo has written, or unset the variable to inspect the machine itself";
  if (access(path.c_str(), R_OK) != 0)
    return Error{Code::kInvalidUsage, "the topology in " + path + " cannot be read: " + strerror(errno) + remedy};
  const std::string what = path + " is not a topology in hwloc's XML";
  if (!has_whole_sets(path))
    return Error{
        Code::kInvalidUsage,
        what + ": an object has only one of cpuset and complete_cpuset, or of nodeset and complete_nodeset" + remedy};
  return load(what + remedy, [&](hwloc_topology_t raw) { return hwloc_topology_set_xml(raw, path.c_str()); });
}

std::string info(hwloc_obj_t o, const char* name) {
  const char* value = hwloc_obj_get_info_by_name(o, name);
  return value == nullptr ? "" : value;
}

CpuSet cpus_of(hwloc_const_bitmap_t set) {
  CpuSet cpus;
  if (set == nullptr) return cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0 && cpu < static_cast<int>(cpus.size());
       cpu = hwloc_bitmap_next(set, cpu))
    cpus[static_cast<size_t>(cpu)] = true;
  return cpus;
}

Part describe_object(hwloc_obj_t o) {
  const unsigned number = o->logical_index;
  Part part{.cpus = cpus_of(o->cpuset)};
  const auto is = [&](Kind kind, const std::string& name) {
    part.kind = kind;
    part.name = name;
  };
  if (hwloc_obj_type_is_cache(o->type)) {
    is(Kind::kCache, format("L%u %u", o->attr->cache.depth, number));
    part.bytes = o->attr->cache.size;
    return part;
  }
  switch (o->type) {
    case HWLOC_OBJ_MACHINE: is(Kind::kMachine, "machine"); break;
    case HWLOC_OBJ_PACKAGE:
      is(Kind::kPackage, format("package %u", number));
      part.detail = info(o, "CPUModel");
      break;
    case HWLOC_OBJ_NUMANODE:
      is(Kind::kNode, format("NUMA node %u", o->os_index));
      part.bytes = o->attr->numanode.local_memory;
      break;
    case HWLOC_OBJ_CORE: is(Kind::kCore, format("core %u", number)); break;
    case HWLOC_OBJ_PU: is(Kind::kCpu, format("CPU %u", o->os_index)); break;
    default:
      is(Kind::kGroup, format("%s %u", o->subtype != nullptr ? o->subtype : hwloc_obj_type_string(o->type), number));
  }
  return part;
}

// Merges the NUMA nodes attached to an object into one part: their memories differ, but not which CPUs are near.
bool find_nodes(hwloc_obj_t o, Part* node) {
  bool found = false;
  for (hwloc_obj_t m = o->memory_first_child; m != nullptr; m = m->next_sibling) {
    if (m->type != HWLOC_OBJ_NUMANODE) {  // a memory-side cache
      found = find_nodes(m, node) || found;
      continue;
    }
    const Part next = describe_object(m);
    node->name += (node->name.empty() ? "" : ", ") + next.name;
    node->bytes += next.bytes;
    found = true;
  }
  node->kind = Kind::kNode;
  return found;
}

void add_devices(hwloc_obj_t o, const std::string& bus, std::vector<Part>& parts) {
  const auto add = [&](hwloc_obj_t device, const std::string& what, const std::string& where) {
    const char* const name = device->name != nullptr ? device->name : "GPU";
    parts.push_back({.kind = Kind::kDevice, .name = name, .detail = what, .bus = where});
  };
  for (hwloc_obj_t d = o->io_first_child; d != nullptr; d = d->next_sibling) {
    std::string here = bus;
    if (d->type == HWLOC_OBJ_PCI_DEVICE) {
      const auto& pci = d->attr->pcidev;
      here = format("%04x:%02x:%02x.%x", static_cast<unsigned>(pci.domain), pci.bus, pci.dev, pci.func);
      const unsigned kind = pci.class_id >> 8;
      // A server's own screen is of the same class as a card that computes.
      constexpr unsigned short kMakersOfGpus[] = {0x10de, 0x1002, 0x8086};
      const bool computes =
          std::find(std::begin(kMakersOfGpus), std::end(kMakersOfGpus), pci.vendor_id) != std::end(kMakersOfGpus);
      if ((kind == 0x03 && computes) || kind == 0x12)
        add(d, "GPU " + info(d, "PCIVendor") + " " + info(d, "PCIDevice"), here);
    } else if (d->type == HWLOC_OBJ_OS_DEVICE) {
      const bool is_network =
          d->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK || d->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS;
      const std::string known = info(d, kNetworkDevice);
      if (is_network) add(d, known.empty() ? "NIC" : known, here);
    }
    add_devices(d, here, parts);
  }
  for (hwloc_obj_t d = o->misc_first_child; d != nullptr; d = d->next_sibling)
    if (const std::string known = info(d, kNetworkDevice); !known.empty()) add(d, known, "");
}

void add_children(hwloc_obj_t o, std::vector<Part>& parts);

Part convert(hwloc_obj_t o) {
  Part part = describe_object(o), node{.cpus = part.cpus};
  if (!find_nodes(o, &node)) {
    add_children(o, part.parts);
  } else if (o->type == HWLOC_OBJ_GROUP) {  // the group exists only to hold the node
    add_children(o, node.parts);
    part = std::move(node);
  } else {
    add_children(o, node.parts);
    part.parts.push_back(std::move(node));
  }
  add_devices(o, "", part.parts);
  return part;
}

// Leaves out what brings no ranks closer together: first-level caches, and the only CPU of a core.
void add_children(hwloc_obj_t o, std::vector<Part>& parts) {
  for (hwloc_obj_t child = o->first_child; child != nullptr; child = child->next_sibling) {
    const bool is_first_level = hwloc_obj_type_is_cache(child->type) && child->attr->cache.depth == 1;
    const bool is_only_cpu = child->type == HWLOC_OBJ_PU && o->type == HWLOC_OBJ_CORE && o->arity == 1;
    if (is_only_cpu) continue;
    if (is_first_level || hwloc_obj_type_is_icache(child->type))
      add_children(child, parts);
    else
      parts.push_back(convert(child));
  }
}

// Names the kinds of cores if there are several, such as fast and power-saving ones.
void tell_kinds(hwloc_topology_t raw, Part& part) {
  for (Part& inner : part.parts) tell_kinds(raw, inner);
  if (part.kind != Kind::kCore) return;
  const hwloc_bitmap_t cpus = hwloc_bitmap_alloc();
  hwloc_bitmap_set(cpus, static_cast<unsigned>(part.cpus._Find_first()));
  const int kind = hwloc_cpukinds_get_by_cpuset(raw, cpus, 0);
  hwloc_bitmap_free(cpus);
  unsigned n_infos = 0;
  struct hwloc_info_s* infos = nullptr;
  int efficiency = -1;
  if (kind < 0 || hwloc_cpukinds_get_info(raw, static_cast<unsigned>(kind), nullptr, &efficiency, &n_infos, &infos, 0))
    return;
  if (efficiency >= 0) part.detail = format("speed class %d", efficiency);
  for (unsigned i = 0; i < n_infos; i++)
    if (strcmp(infos[i].name, "CoreType") == 0) part.detail = infos[i].value;
}

Machine to_machine(const Topology& topology, const std::string& source) {
  Machine machine;
  machine.whole = convert(hwloc_get_root_obj(topology.get()));
  if (hwloc_cpukinds_get_nr(topology.get(), 0) > 1) tell_kinds(topology.get(), machine.whole);
  machine.source = source;
  return machine;
}

}  // namespace

Result<Machine> discover_with_hwloc() {
  TUTTI_TRY_ASSIGN(const Topology topology, load_this());
  return to_machine(topology, "hwloc");
}

Result<Machine> read_machine(const std::string& path) {
  TUTTI_TRY_ASSIGN(const Topology topology, load_xml(path));
  return to_machine(topology, path);
}

Result<Machine> synthetic_machine(const std::string& description) {
  const std::string what =
      "'" + description + "' is not a topology in hwloc's short form, such as \"pack:2 numa:2 core:8 pu:1\"";
  const auto choose = [&](hwloc_topology_t raw) { return hwloc_topology_set_synthetic(raw, description.c_str()); };
  TUTTI_TRY_ASSIGN(const Topology topology, load(what, choose));
  return to_machine(topology, description);
}

Result<std::string> hwloc_xml(const std::string& from) {
  TUTTI_TRY_ASSIGN(const Topology topology, from.empty() ? load_this() : load_xml(from));
  char* bytes = nullptr;
  int length = 0;
  if (hwloc_topology_export_xmlbuffer(topology.get(), &bytes, &length, 0) != 0)
    return system_error("exporting the topology as XML (hwloc)", errno);
  std::string xml(bytes, length > 0 ? static_cast<size_t>(length) - 1 : 0);  // without the final zero
  hwloc_free_xmlbuffer(topology.get(), bytes);
  return xml;
}

}  // namespace tutti
