// Devices, memory, streams, events and graphs.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cudart.h"

namespace tutti_test::cudart {

World& world() {
  static auto* const all = [] {
    auto* const made = new World;
    if (const char* n = getenv("TUTTI_TEST_GPUS"); n != nullptr) made->n_devices = std::max(1, atoi(n));
    made->port = new FakePort(made->n_devices);
    return made;
  }();
  return *all;
}

int& this_device() {
  thread_local int device = 0;
  return device;
}

bool& has_context() {
  thread_local bool has = false;
  return has;
}

cudaStream_t own(cudaStream_t stream) {
  return stream == cudaStreamLegacy ? nullptr : stream;
}

bool find(const void* memory, const void** begin, Allocated* found) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  const auto after = w.memory.upper_bound(memory);
  if (after == w.memory.begin()) return false;
  const auto& [at, allocated] = *std::prev(after);
  if (static_cast<const char*>(memory) >= static_cast<const char*>(at) + allocated.bytes) return false;
  *begin = at;
  *found = allocated;
  return true;
}

namespace {
thread_local cudaError_t t_last = cudaSuccess;

void enter(const void* memory, size_t bytes, int device, bool is_mapped = false) {
  const std::lock_guard lock(world().mutex);
  world().memory[memory] = {bytes, device, is_mapped};
}
void leave(const void* memory) {
  const std::lock_guard lock(world().mutex);
  world().memory.erase(memory);
}

// Memory that CUDA knows, so that a pointer of the host's that a GPU could not use is found.
bool is_known(const void* memory, size_t bytes) {
  const void* begin = nullptr;
  Allocated found;
  return bytes == 0 || (find(memory, &begin, &found) &&
                        static_cast<const char*>(memory) + bytes <= static_cast<const char*>(begin) + found.bytes);
}

cudaError_t create(cudaStream_t* stream, bool is_urgent) {
  FakePort& port = *world().port;
  auto made = is_urgent ? port.create_urgent_stream() : port.create_stream();
  if (!made) return remember(cudaErrorMemoryAllocation);
  *stream = static_cast<cudaStream_t>(made.value());
  const std::lock_guard lock(world().mutex);
  world().streams[*stream] = this_device();
  return cudaSuccess;
}

FakeGraph* graph_of(void* graph) {
  return static_cast<FakeGraph*>(graph);
}
}  // namespace

cudaError_t remember(cudaError_t code) {
  if (code != cudaSuccess) t_last = code;
  return code;
}
cudaError_t outcome_of(const tutti::Result<void>& result) {
  if (result) return cudaSuccess;
  fprintf(stderr, "the made-up CUDA runtime: %s\n", result.error().message.c_str());
  return remember(cudaErrorInvalidValue);
}

}  // namespace tutti_test::cudart

using namespace tutti_test;
using namespace tutti_test::cudart;

extern "C" {

// ---- devices

cudaError_t cudaGetDeviceCount(int* n) {
  *n = world().n_devices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = this_device();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (!world().port->use(device)) return remember(cudaErrorInvalidDevice);
  this_device() = device;
  has_context() = true;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  std::vector<cudaStream_t> streams = {nullptr};
  {
    const std::lock_guard lock(world().mutex);
    for (const auto& [stream, device] : world().streams)
      if (device == this_device()) streams.push_back(stream);
  }
  for (const cudaStream_t stream : streams) (void)world().port->synchronize(stream);
  return cudaSuccess;
}
cudaError_t cudaDeviceReset() {
  return cudaDeviceSynchronize();
}
cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned) {
  return outcome_of(world().port->reach(device));
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = 132; return cudaSuccess;
    default: return remember(cudaErrorInvalidValue);
  }
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "made up");
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  properties->multiProcessorCount = 132;
  properties->totalGlobalMem = size_t{1} << 30;
  properties->pciBusID = device + 1;
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* most) {
  *least = 0;
  *most = -5;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return std::exchange(t_last, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaSuccess ? "no error" : "an error of the made-up runtime";
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode own_mode = cudaStreamCaptureModeGlobal;
  std::swap(*mode, own_mode);
  return cudaSuccess;
}

// ---- memory

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const auto made = world().port->allocate(std::max<size_t>(bytes, 1));
  if (!made) return remember(cudaErrorMemoryAllocation);
  has_context() = true;
  enter(*memory = made.value(), bytes, this_device());
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  leave(memory);
  world().port->free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  constexpr size_t kPageBytes = 4096;
  *memory = aligned_alloc(kPageBytes, (bytes + kPageBytes) / kPageBytes * kPageBytes);
  enter(*memory, bytes, -1);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  leave(memory);
  free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return outcome_of(world().port->copy(to, from, bytes, own(stream)));
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  if (!is_known(memory, bytes)) return remember(cudaErrorInvalidValue);
  world().port->enqueue(own(stream), [=] { memset(memory, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t code = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return code == cudaSuccess ? cudaStreamSynchronize(nullptr) : code;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  const cudaError_t code = cudaMemsetAsync(memory, value, bytes, nullptr);
  return code == cudaSuccess ? cudaStreamSynchronize(nullptr) : code;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  *attributes = {};
  const void* begin = nullptr;
  Allocated found;
  if (!find(memory, &begin, &found)) return cudaSuccess;  // not CUDA's, as its type says
  attributes->type = found.device < 0 ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  attributes->device = std::max(0, found.device);
  attributes->devicePointer = attributes->hostPointer = const_cast<void*>(memory);
  if (found.device >= 0) attributes->hostPointer = nullptr;
  return cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  const auto shared = world().port->share(memory);
  if (!shared) return remember(cudaErrorInvalidValue);
  memcpy(handle, shared.value().bytes.data(), sizeof *handle);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  tutti::cuda::IpcHandle its;
  memcpy(its.bytes.data(), &handle, sizeof handle);
  const auto mapped = world().port->map(its);
  if (!mapped) return remember(cudaErrorInvalidValue);
  *memory = mapped.value();
  enter(*memory, world().port->allocation_of(*memory).value().bytes, this_device(), true);
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* memory) {
  leave(memory);
  world().port->unmap(memory);
  return cudaSuccess;
}

// ---- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return create(stream, false);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  return create(stream, priority < 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(world().mutex);
    world().streams.erase(stream);
  }
  world().port->destroy_stream(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return outcome_of(world().port->synchronize(own(stream)));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return world().port->has_ended(own(stream)) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  *id = world().port->id_of(own(stream)).value();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return outcome_of(world().port->wait(own(stream), event));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const bool captures = world().port->is_capturing(own(stream)).value();
  *status = captures ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = static_cast<cudaEvent_t>(world().port->create_event().value());
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  world().port->destroy_event(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return outcome_of(world().port->record(event, own(stream)));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto reached = world().port->reached(event);
  if (!reached) return remember(cudaErrorInvalidResourceHandle);
  return reached.value() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const auto seconds = world().port->seconds_between(from, to);
  if (!seconds) return remember(cudaErrorNotReady);
  *milliseconds = static_cast<float>(seconds.value() * 1e3);
  return cudaSuccess;
}

// ---- graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  world().port->begin_capture(stream, new FakeGraph);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  FakeGraph* const captured = world().port->capture_of(stream);
  if (captured == nullptr) return remember(cudaErrorIllegalState);
  world().port->end_capture(captured);
  *graph = reinterpret_cast<cudaGraph_t>(captured);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = reinterpret_cast<cudaGraphExec_t>(new FakeGraph(*graph_of(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  world().port->launch(*graph_of(graph), own(stream));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph_of(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph_of(graph);
  return cudaSuccess;
}
}
