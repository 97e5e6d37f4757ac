// The CUDA driver, loaded when it is first needed: this library also has to load where there is no driver.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <type_traits>

#include "nccl/shim.h"

namespace tutti::nccl {
namespace {

constexpr int kMemoryTypeAttribute = 2, kDeviceMemory = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE

struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*device_count)(int*) = nullptr;
  int (*device_get)(int*, int) = nullptr;
  int (*context_device)(int*) = nullptr;
  int (*retain_primary_context)(void**, int) = nullptr;
  int (*set_context)(void*) = nullptr;
  int (*alloc)(uint64_t*, size_t) = nullptr;
  int (*free)(uint64_t) = nullptr;
  int (*pointer_attribute)(void*, int, uint64_t) = nullptr;
  int n_devices = 0;

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      void* found = dlsym(library, name);
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
      return found != nullptr;
    };
    const bool complete = find(init, "cuInit") && find(device_count, "cuDeviceGetCount") &&
                          find(device_get, "cuDeviceGet") && find(context_device, "cuCtxGetDevice") &&
                          find(retain_primary_context, "cuDevicePrimaryCtxRetain") &&
                          find(set_context, "cuCtxSetCurrent") && find(alloc, "cuMemAlloc_v2") &&
                          find(free, "cuMemFree_v2") && find(pointer_attribute, "cuPointerGetAttribute");
    if (!complete || init(0) != 0 || device_count(&n_devices) != 0) n_devices = 0;
  }
};

const Driver& driver() {
  static const auto* loaded = new Driver;  // never destroyed: threads may outlive main
  return *loaded;
}

bool enter_context() {
  const Driver& cuda = driver();
  int device = 0;
  if (cuda.context_device(&device) == 0) return true;
  void* context = nullptr;
  return cuda.device_get(&device, 0) == 0 && cuda.retain_primary_context(&context, device) == 0 &&
         cuda.set_context(context) == 0;
}

}  // namespace

// The number of the device that the calling thread's context is on. Without a context it is the first device, as in the
// CUDA runtime.
int current_device() {
  const Driver& cuda = driver();
  int current = 0;
  if (cuda.n_devices == 0) return -1;
  if (cuda.context_device(&current) != 0) return 0;
  for (int i = 0, device = -1; i < cuda.n_devices; i++)
    if (cuda.device_get(&device, i) == 0 && device == current) return i;
  return 0;
}

int device_of_rank(int rank) {
  const int device = current_device();
  static std::atomic<bool> warned{false};
  if (device < 0 && rank == 0 && !warned.exchange(true))
    fputs("Tutti's libnccl.so.2: there is no CUDA device here, so buffers are assumed to be in host memory\n", stderr);
  return device;
}

ncclResult_t device_alloc(void** ptr, size_t size) {
  uint64_t address = 0;
  const int error = !enter_context() ? -1 : size == 0 ? 0 : driver().alloc(&address, size);
  *ptr = reinterpret_cast<void*>(address);
  if (error == 0) return tuttiSuccess;
  return refused(tuttiUnhandledCudaError, "ncclMemAlloc of %zu bytes on device %d: %s %d", size, current_device(),
                 error == -1 ? "no context, error" : "cuMemAlloc: error", error);
}

bool is_device_memory(void* ptr) {
  unsigned type = 0;
  const Driver& cuda = driver();
  return cuda.n_devices > 0 && enter_context() &&
         cuda.pointer_attribute(&type, kMemoryTypeAttribute, reinterpret_cast<uintptr_t>(ptr)) == 0 &&
         type == kDeviceMemory;
}

ncclResult_t device_free(void* ptr) {
  const int error = driver().free(reinterpret_cast<uintptr_t>(ptr));
  if (error == 0) return tuttiSuccess;
  return refused(tuttiUnhandledCudaError, "ncclMemFree of %p: cuMemFree: error %d", ptr, error);
}

}  // namespace tutti::nccl
