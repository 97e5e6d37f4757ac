#include "tools/topo/graph.h"

#include <dlfcn.h>

#include "base/log.h"

namespace tutti {
namespace {

// The part of nvml.h that is used here; the library itself comes only with the driver.
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

// The number of links to each device, by its PCI bus id; to switches by "".
std::map<std::string, int> count_links(const Nvml& nvml, Device device) {
  std::map<std::string, int> counts;
  for (unsigned link = 0; link < kMostLinks; link++) {
    int is_active = 0, type = -1;
    PciInfo remote{};
    if (nvml.link_state(device, link, &is_active) != 0 || is_active == 0) continue;
    if (nvml.remote_type(device, link, &type) != 0 || nvml.remote_pci(device, link, &remote) != 0) continue;
    if (type == kGpu || type == kSwitch) counts[type == kSwitch ? "" : bus_of(remote)]++;
  }
  return counts;
}

// `fabric` is the node of all switches; -1: there is none yet.
void add_links(const Nvml& nvml, Device device, Graph& graph, int& fabric) {
  PciInfo own{};
  int major = 0, minor = 0;
  if (nvml.pci(device, &own) != 0) return;
  const std::string from = bus_of(own);
  const int gpu = graph.gpu_at(from);
  if (gpu < 0) return;
  int& sm = graph.nodes[static_cast<size_t>(gpu)].sm;
  if (nvml.capability(device, &major, &minor) == 0) sm = 10 * major + minor;
  const double each = nvlink_bytes_per_second(sm);
  for (const auto& [to, count] : count_links(nvml, device)) {
    if (to.empty() && fabric < 0) fabric = graph.add(Graph::Kind::kFabric, "NVSwitch");
    if (to.empty())
      graph.join(gpu, fabric, count * each, kNvLinkNs / 2);
    else if (const int peer = graph.gpu_at(to); peer >= 0 && from < to)  // both GPUs report the link
      graph.join(gpu, peer, count * each, kNvLinkNs);
  }
}

}  // namespace

void add_nvlinks(Graph& graph, const char* library) {
  Nvml nvml;
  if (!nvml.open(library))
    return log(LogLevel::kInfo, "no links between GPUs are known: %s",
               nvml.library == nullptr ? dlerror() : "NVML is too old");
  if (const int code = nvml.init(); code != 0)
    return log(LogLevel::kInfo, "no links between GPUs are known: NVML returned %d; is the driver loaded?", code);
  unsigned n = 0;
  nvml.count(&n);
  int fabric = -1;
  for (unsigned i = 0; i < n; i++)
    if (Device device = nullptr; nvml.device(i, &device) == 0) add_links(nvml, device, graph, fabric);
  nvml.shutdown();
}

}  // namespace tutti
