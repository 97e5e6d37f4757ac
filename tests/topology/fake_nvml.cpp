// NVIDIA's management library on a machine with four GPUs on the buses 0x10 to 0x40. The first two are joined by four
// links, one of which is down; the others are joined to two switches by six links each.
#include <cstdio>
#include <cstring>

extern "C" {

struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

// A device is its number plus 1.
static unsigned number(void* device) {
  return static_cast<unsigned>(reinterpret_cast<size_t>(device)) - 1;
}
static void set_bus(PciInfo* pci, unsigned bus) {
  memset(pci, 0, sizeof *pci);
  pci->domain = 0, pci->bus = bus, pci->device = 0;
  snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", bus);
}

int nvmlInit_v2() {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* n) {
  return *n = 4, 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** device) {
  return *device = reinterpret_cast<void*>(static_cast<size_t>(i) + 1), 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* pci) {
  return set_bus(pci, 0x10 * (number(device) + 1)), 0;
}
int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  return *major = 9, *minor = 0, 0;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* is_active) {
  const unsigned links = number(device) < 2 ? 4 : 6;
  if (link >= links) return 3;  // not supported
  return *is_active = links == 4 && link == 2 ? 0 : 1, 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned link, PciInfo* pci) {
  const unsigned n = number(device);
  return set_bus(pci, n == 0 ? 0x20 : n == 1 ? 0x10 : 0xa0 + link % 2), 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned, int* type) {
  return *type = number(device) < 2 ? 0 : 2, 0;
}

}  // extern "C"
