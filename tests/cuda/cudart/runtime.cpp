// Devices, memory, streams, events and graphs.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>
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

// Memory must be known to CUDA, so that host pointers that a GPU could not use are found.
bool is_known(const void* memory, size_t bytes) {
  const void* begin = nullptr;
  Allocated found;
  return bytes == 0 || (find(memory, &begin, &found) &&
                        static_cast<const char*>(memory) + bytes <= static_cast<const char*>(begin) + found.bytes);
}

cudaError_t create(cudaStream_t* stream, unsigned flags, bool is_urgent) {
  FakePort& port = *world().port;
  auto made = flags != cudaStreamNonBlocking ? port.create_blocking_stream() : port.create_stream(is_urgent);
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

cudaStreamCaptureMode& mode_of_thread() {
  thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  return mode;
}

cudaError_t unsafe() {
  const cudaStreamCaptureMode mine = mode_of_thread();
  if (mine == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  const std::lock_guard lock(world().mutex);
  bool spoils = false;
  for (auto& [capture, its] : world().captures) {
    if (its.mode == cudaStreamCaptureModeRelaxed) continue;
    const bool is_others = mine == cudaStreamCaptureModeGlobal && its.mode == cudaStreamCaptureModeGlobal;
    if (its.by != std::this_thread::get_id() && !is_others) continue;
    capture->is_spoilt = spoils = true;
  }
  return spoils ? remember(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

void wait_for_device() {
  std::vector<cudaStream_t> streams = {nullptr};
  {
    const std::lock_guard lock(world().mutex);
    for (const auto& [stream, device] : world().streams)
      if (device == this_device()) streams.push_back(stream);
  }
  for (const cudaStream_t stream : streams) world().port->finish(stream);
}

cudaError_t remember(cudaError_t code) {
  if (code != cudaSuccess) t_last = code;
  return code;
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
  if (const cudaError_t code = unsafe(); code != cudaSuccess) return code;
  wait_for_device();
  return cudaSuccess;
}
cudaError_t cudaDeviceReset() {
  return cudaDeviceSynchronize();
}
cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned) {
  static std::set<std::pair<int, int>> enabled;
  if (const cudaError_t code = outcome_of(world().port->reach(device)); code != cudaSuccess) return code;
  const std::lock_guard lock(world().mutex);
  const bool is_new = enabled.insert({this_device(), device}).second;
  return is_new ? cudaSuccess : remember(cudaErrorPeerAccessAlreadyEnabled);
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
  std::swap(*mode, mode_of_thread());
  return cudaSuccess;
}

// ---- memory

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (const cudaError_t code = unsafe(); code != cudaSuccess) return code;
  const auto made = world().port->allocate(std::max<size_t>(bytes, 1));
  if (!made) return remember(cudaErrorMemoryAllocation);
  has_context() = true;
  enter(*memory = made.value(), bytes, this_device());
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  if (const cudaError_t code = unsafe(); code != cudaSuccess) return code;
  wait_for_device();
  leave(memory);
  world().port->free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  if (const cudaError_t code = unsafe(); code != cudaSuccess) return code;
  constexpr size_t kPageBytes = 4096;
  *memory = aligned_alloc(kPageBytes, (bytes + kPageBytes) / kPageBytes * kPageBytes);
  enter(*memory, bytes, -1);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  enter(memory, bytes, -1);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  leave(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  if (const cudaError_t code = unsafe(); code != cudaSuccess) return code;
  leave(memory);
  free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return outcome_of(world().port->copy(to, from, bytes, own(stream)));
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t row_bytes,
                              size_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t r = 0; r < rows; r++) {
    const cudaError_t code = cudaMemcpyAsync(static_cast<char*>(to) + r * to_pitch,
                                             static_cast<const char*>(from) + r * from_pitch, row_bytes, kind, stream);
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  if (!is_known(memory, bytes)) return remember(cudaErrorInvalidValue);
  return outcome_of(world().port->enqueue(own(stream), [=] { memset(memory, value, bytes); }));
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
  if (const cudaError_t code = unsafe(); code != cudaSuccess) return code;
  const auto shared = world().port->share(memory);
  if (!shared) return remember(cudaErrorInvalidValue);
  memcpy(handle, shared.value().bytes.data(), sizeof *handle);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  if (const cudaError_t code = unsafe(); code != cudaSuccess) return code;
  tutti::cuda::IpcHandle its;
  memcpy(its.bytes.data(), &handle, sizeof handle);
  const auto mapped = world().port->map(its);
  if (!mapped) return remember(cudaErrorInvalidValue);
  *memory = mapped.value();
  enter(*memory, world().port->allocation_of(*memory).value().bytes, this_device(), true);
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* memory) {
  if (const cudaError_t code = unsafe(); code != cudaSuccess) return code;
  leave(memory);
  world().port->unmap(memory);
  return cudaSuccess;
}

// ---- streams and events

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return create(stream, cudaStreamDefault, false);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return create(stream, flags, false);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return create(stream, flags, priority < 0);
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
  if (world().port->capture_of(own(stream)) == nullptr)
    if (const cudaError_t code = unsafe(); code != cudaSuccess) return code;
  return outcome_of(world().port->synchronize(own(stream)));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (world().port->capture_of(own(stream)) == nullptr)
    if (const cudaError_t code = unsafe(); code != cudaSuccess) return code;
  const auto ended = world().port->has_ended(own(stream));
  return !ended || ended.value() ? outcome_of(ended) : cudaErrorNotReady;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  // CUDA 13.0 behaves like this.
  if (world().port->capture_of(own(stream)) != nullptr) return cudaErrorStreamCaptureUnsupported;
  *id = world().port->id_of(own(stream), false).value();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return outcome_of(world().port->wait(own(stream), event));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const auto capture = world().port->capture_of(own(stream));
  *status = capture == nullptr   ? cudaStreamCaptureStatusNone
            : capture->is_spoilt ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
  if (*status == cudaStreamCaptureStatusInvalidated) return cudaSuccess;
  return outcome_of(world().port->is_capturing(own(stream)));
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
  if (!reached) return outcome_of(reached);
  if (const cudaError_t code = unsafe(); code != cudaSuccess) return code;
  return reached.value() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  cudaError_t code = cudaEventQuery(event);
  for (; code == cudaErrorNotReady; code = cudaEventQuery(event)) std::this_thread::yield();
  return code;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const auto seconds = world().port->seconds_between(from, to);
  if (!seconds) return outcome_of(seconds);
  *milliseconds = static_cast<float>(seconds.value() * 1e3);
  return cudaSuccess;
}

// ---- graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (own(stream) == nullptr) return remember(cudaErrorStreamCaptureUnsupported);
  world().port->begin_capture(stream, new FakeGraph);
  const std::lock_guard lock(world().mutex);
  world().captures[world().port->capture_of(stream)] = {std::this_thread::get_id(), mode};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const auto capture = world().port->capture_of(own(stream));
  {
    const std::lock_guard lock(world().mutex);
    const auto its = world().captures.find(capture);
    if (its != world().captures.end() && its->second.mode != cudaStreamCaptureModeRelaxed &&
        its->second.by != std::this_thread::get_id())
      return remember(cudaErrorStreamCaptureWrongThread);
  }
  const auto ended = world().port->end_capture(own(stream));
  *graph = ended ? reinterpret_cast<cudaGraph_t>(capture->graph) : nullptr;
  if (capture == nullptr || !capture->is_over) return outcome_of(ended);
  if (!ended) delete capture->graph;
  const std::lock_guard lock(world().mutex);
  world().captures.erase(capture);
  return outcome_of(ended);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = reinterpret_cast<cudaGraphExec_t>(new FakeGraph(*graph_of(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return outcome_of(world().port->launch(*graph_of(graph), own(stream)));
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
