#include "topology/nvml.h"

#include <dlfcn.h>

#include <algorithm>

#include "base/log.h"

namespace tutti {
namespace {

// Of nvml.h what is called here; only the driver brings that library.
using Device = struct NvmlDevice*;
struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);
enum RemoteType { kGpu = 0, kSwitch = 2 };
constexpr unsigned kMostLinks = 18;  // NVML_NVLINK_MAX_LINKS

struct Nvml {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, Device*) = nullptr;
  int (*pci)(Device, PciInfo*) = nullptr;
  int (*capability)(Device, int* major, int* minor) = nullptr;
  int (*link_state)(Device, unsigned link, int* is_active) = nullptr;
  int (*remote_pci)(Device, unsigned link, PciInfo*) = nullptr;
  int (*remote_type)(Device, unsigned link, int* type) = nullptr;

  template <class Function>
  bool find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    return *function != nullptr;
  }
  bool open(const char* name) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    return library != nullptr && find("nvmlInit_v2", &init) && find("nvmlShutdown", &shutdown) &&
           find("nvmlDeviceGetCount_v2", &count) && find("nvmlDeviceGetHandleByIndex_v2", &device) &&
           find("nvmlDeviceGetPciInfo_v3", &pci) && find("nvmlDeviceGetCudaComputeCapability", &capability) &&
           find("nvmlDeviceGetNvLinkState", &link_state) && find("nvmlDeviceGetNvLinkRemotePciInfo_v2", &remote_pci) &&
           find("nvmlDeviceGetNvLinkRemoteDeviceType", &remote_type);
  }
};

std::string bus_of(const PciInfo& pci) {
  return format("%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
}

void add_links(const Nvml& nvml, Device device, NvLinks& found) {
  PciInfo own{};
  int major = 0, minor = 0;
  if (nvml.pci(device, &own) != 0) return;
  const std::string from = bus_of(own);
  if (nvml.capability(device, &major, &minor) == 0) found.sm[from] = 10 * major + minor;
  std::map<std::string, int> counts;
  for (unsigned link = 0; link < kMostLinks; link++) {
    int is_active = 0, type = -1;
    PciInfo remote{};
    if (nvml.link_state(device, link, &is_active) != 0 || is_active == 0) continue;
    if (nvml.remote_type(device, link, &type) != 0 || nvml.remote_pci(device, link, &remote) != 0) continue;
    if (type == kGpu || type == kSwitch) counts[type == kSwitch ? "" : bus_of(remote)]++;
  }
  for (const auto& [to, count] : counts) found.links.push_back({from, to, count});
}

}  // namespace

NvLinks find_nvlinks(const char* library) {
  NvLinks found;
  Nvml nvml;
  if (!nvml.open(library)) {
    log(LogLevel::kInfo, "no links between GPUs are known: %s",
        nvml.library == nullptr ? dlerror() : "NVML is too old");
    return found;
  }
  if (const int code = nvml.init(); code != 0) {
    log(LogLevel::kInfo, "no links between GPUs are known: NVML says %d; is the driver loaded?", code);
    return found;
  }
  unsigned n = 0;
  nvml.count(&n);
  for (unsigned i = 0; i < n; i++)
    if (Device device = nullptr; nvml.device(i, &device) == 0) add_links(nvml, device, found);
  nvml.shutdown();
  return found;
}

void add_nvlinks(const NvLinks& found, Graph& graph) {
  const auto gpu = [&](const std::string& bus) {
    const auto node = std::ranges::find_if(
        graph.nodes, [&](const Graph::Node& n) { return n.kind == Graph::Kind::kGpu && n.bus == bus; });
    return node == graph.nodes.end() ? -1 : static_cast<int>(node - graph.nodes.begin());
  };
  int fabric = -1;
  for (const auto& [bus, sm] : found.sm)
    if (const int node = gpu(bus); node >= 0) graph.nodes[static_cast<size_t>(node)].sm = sm;
  for (const NvLinks::Link& link : found.links) {
    const int from = gpu(link.from), to = gpu(link.to);
    // Both of two GPUs tell of what joins them.
    if (from < 0 || (!link.to.empty() && (to < 0 || link.from > link.to))) continue;
    const double speed = link.count * nvlink_bytes_per_second(graph.nodes[static_cast<size_t>(from)].sm);
    if (link.to.empty() && fabric < 0) fabric = graph.add(Graph::Kind::kFabric, "NVSwitch");
    if (link.to.empty())
      graph.join(from, fabric, speed, kNvLinkNs / 2);
    else
      graph.join(from, to, speed, kNvLinkNs);
  }
}

}  // namespace tutti
