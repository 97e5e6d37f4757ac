// The functions of CUDA's driver that the library calls.
#include <cuda.h>

#include <cstdio>
#include <string>
#include <vector>

#include "cudart.h"

using namespace tutti_test::cudart;

namespace {

CUresult stream_batch(CUstream stream, unsigned n, CUstreamBatchMemOpParams* params, unsigned) {
  if (n >= 256) return CUDA_ERROR_INVALID_VALUE;
  std::vector<tutti::cuda::WordOperation> words;
  for (unsigned i = 0; i < n; i++) {
    const CUstreamBatchMemOpParams& p = params[i];
    const bool waits = p.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32;
    const CUdeviceptr at = waits ? p.waitValue.address : p.writeValue.address;
    words.push_back({reinterpret_cast<uint32_t*>(at), waits ? p.waitValue.value : p.writeValue.value, waits});
  }
  const auto done = world().port->words(words.data(), static_cast<int>(n), own(stream));
  return static_cast<CUresult>(outcome_of(done));
}

CUresult address_range(CUdeviceptr* base, size_t* bytes, CUdeviceptr memory) {
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  const void* begin = nullptr;
  Allocated found;
  if (!find(reinterpret_cast<const void*>(memory), &begin, &found) || found.device < 0) return CUDA_ERROR_NOT_FOUND;
  *base = reinterpret_cast<CUdeviceptr>(begin);
  *bytes = found.bytes;
  return CUDA_SUCCESS;
}

// Network devices cannot register its memory.
CUresult device_attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

// ---- the driver's own functions: programs that load libcuda.so.1 get this library, too

CUresult cuInit(unsigned) {
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* n) {
  *n = world().n_devices;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < world().n_devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = this_device();
  return has_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  const bool set = cudaSetDevice(static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1) == cudaSuccess;
  return set ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuMemAlloc(CUdeviceptr* memory, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(memory), bytes) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFree(CUdeviceptr memory) {
  return cudaFree(reinterpret_cast<void*>(memory)) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr memory) {
  const void* begin = nullptr;
  Allocated found;
  if (!find(reinterpret_cast<const void*>(memory), &begin, &found)) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = found.device < 0 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<int*>(data) = found.device >= 0 && !found.is_mapped;
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

// The driver's versions of runtime functions, for the perf tools.
namespace {
CUresult driver_code(cudaError_t code) {
  return static_cast<CUresult>(code);  // many have the same number in both
}
}  // namespace
CUresult cuGetErrorName(CUresult code, const char** name) {
  *name = code == CUDA_SUCCESS ? "CUDA_SUCCESS" : "an error of the made-up driver";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
  snprintf(name, static_cast<size_t>(bytes), "made up");
  return CUDA_SUCCESS;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return driver_code(cudaMemcpyAsync(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes,
                                     cudaMemcpyDefault, stream));
}
CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, size_t bytes, CUstream stream) {
  return driver_code(cudaMemsetAsync(reinterpret_cast<void*>(memory), value, bytes, stream));
}
CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return driver_code(cudaStreamCreateWithFlags(stream, flags));
}
CUresult cuStreamSynchronize(CUstream stream) {
  return driver_code(cudaStreamSynchronize(stream));
}
CUresult cuStreamDestroy(CUstream stream) {
  return driver_code(cudaStreamDestroy(stream));
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  return driver_code(cudaStreamBeginCapture(stream, static_cast<cudaStreamCaptureMode>(mode)));
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return driver_code(cudaStreamEndCapture(stream, graph));
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* made, CUgraph graph, unsigned long long flags) {
  return driver_code(cudaGraphInstantiate(made, graph, flags));
}
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  return driver_code(cudaGraphLaunch(graph, stream));
}
CUresult cuGraphDestroy(CUgraph graph) {
  return driver_code(cudaGraphDestroy(graph));
}
CUresult cuGraphExecDestroy(CUgraphExec graph) {
  return driver_code(cudaGraphExecDestroy(graph));
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const std::map<std::string, void*> known = {
      {"cuStreamBatchMemOp", reinterpret_cast<void*>(stream_batch)},
      {"cuMemGetAddressRange", reinterpret_cast<void*>(address_range)},
      {"cuPointerGetAttribute", reinterpret_cast<void*>(cuPointerGetAttribute)},
      {"cuCtxGetDevice", reinterpret_cast<void*>(cuCtxGetDevice)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(device_attribute)},
  };
  const auto it = known.find(name);
  *function = it == known.end() ? nullptr : it->second;
  *found = it == known.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
}
