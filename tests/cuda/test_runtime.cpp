// The port over CUDA's runtime, with the functions that it calls replaced by the linker (--wrap): they are as strict as
// the driver about threads without a context, about what is forbidden during a capture, and about the default
// stream.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "catch.h"
#include "cuda/port.h"

using namespace tutti;

namespace {

// A device's primary context is its number plus 1; 100 more is another context of the device.
thread_local uintptr_t t_context = 0;  // 0: none
thread_local int t_device = 0;         // without a context
constexpr uintptr_t kOther = 100;
std::set<int> g_contexts;  // devices on which this program has one
thread_local cudaStreamCaptureMode t_mode = cudaStreamCaptureModeGlobal;
bool g_refuses_words = false;
bool g_captures = false;  // a thread of this program is capturing
int g_spoilt = 0, g_default_streams = 0;
size_t g_rows = 0;  // of the last copy
std::set<const void*> g_loaded;
std::vector<unsigned> g_batches;   // words in each batch
std::vector<CUdeviceptr> g_words;  // addresses of all words
char g_memory[4096];
constexpr int kHighestPriority = -5;

// Calls that invalidate a capture unless the thread's mode is relaxed.
cudaError_t unsafe() {
  if (!g_captures || t_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  g_spoilt++;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t on_stream(cudaStream_t stream) {
  if (stream == nullptr) g_default_streams++;
  return cudaSuccess;
}

int device_of(uintptr_t context) {
  return static_cast<int>(context % kOther) - 1;
}
CUresult current_device(CUdevice* device) {
  *device = device_of(t_context);
  return t_context != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult current_context(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(t_context);
  return CUDA_SUCCESS;
}
CUresult set_context(CUcontext context) {
  t_context = reinterpret_cast<uintptr_t>(context);
  return CUDA_SUCCESS;
}
CUresult primary_state(CUdevice device, unsigned*, int* is_active) {
  *is_active = g_contexts.contains(device) ? 1 : 0;
  return CUDA_SUCCESS;
}
CUresult device_attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES;
  return CUDA_SUCCESS;
}

// A wait must be for equality: the values are numbers that grow.
CUresult batch_words(CUstream, unsigned n, CUstreamBatchMemOpParams* params, unsigned) {
  constexpr unsigned kMost = 255;
  if (n > kMost) return CUDA_ERROR_INVALID_VALUE;
  if (g_refuses_words) return CUDA_ERROR_NOT_SUPPORTED;
  g_batches.push_back(n);
  for (unsigned i = 0; i < n; i++) {
    const bool waits = params[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32;
    if (waits && params[i].waitValue.flags != CU_STREAM_WAIT_VALUE_EQ) return CUDA_ERROR_INVALID_VALUE;
    g_words.push_back(waits ? params[i].waitValue.address : params[i].writeValue.address);
  }
  return CUDA_SUCCESS;
}

cudaError_t driver_function(const char* name, void** function) {
  *function = nullptr;
  if (strcmp(name, "cuStreamBatchMemOp") == 0) *function = reinterpret_cast<void*>(batch_words);
  if (strcmp(name, "cuCtxGetDevice") == 0) *function = reinterpret_cast<void*>(current_device);
  if (strcmp(name, "cuCtxGetCurrent") == 0) *function = reinterpret_cast<void*>(current_context);
  if (strcmp(name, "cuCtxSetCurrent") == 0) *function = reinterpret_cast<void*>(set_context);
  if (strcmp(name, "cuDeviceGetAttribute") == 0) *function = reinterpret_cast<void*>(device_attribute);
  if (strcmp(name, "cuDevicePrimaryCtxGetState") == 0) *function = reinterpret_cast<void*>(primary_state);
  return cudaSuccess;
}

}  // namespace

extern "C" {
cudaError_t __wrap_cudaGetDevice(int* device) {
  *device = t_context != 0 ? device_of(t_context) : t_device;  // even without a context
  return cudaSuccess;
}
cudaError_t __wrap_cudaSetDevice(int device) {
  t_context = static_cast<uintptr_t>(device) + 1;
  g_contexts.insert(t_device = device);
  return cudaSuccess;
}
cudaError_t __wrap_cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  memset(properties, 0, sizeof *properties);
  return cudaSuccess;
}
cudaError_t __wrap_cudaGetDeviceProperties_v2(cudaDeviceProp* properties, int device) {  // CUDA 12
  return __wrap_cudaGetDeviceProperties(properties, device);
}
cudaError_t __wrap_cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, t_mode);
  return cudaSuccess;
}
cudaError_t __wrap_cudaMalloc(void** memory, size_t) {
  *memory = g_memory;
  return unsafe();
}
cudaError_t __wrap_cudaMemset(void*, int, size_t) {
  g_default_streams++;
  return unsafe();
}
cudaError_t __wrap_cudaMemsetAsync(void*, int, size_t, cudaStream_t stream) {
  return on_stream(stream);
}
cudaError_t __wrap_cudaDeviceGetStreamPriorityRange(int* least, int* most) {
  *least = 0;
  *most = kHighestPriority;
  return cudaSuccess;
}
cudaError_t __wrap_cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  *stream = reinterpret_cast<cudaStream_t>(g_memory);
  return flags == cudaStreamNonBlocking && priority == kHighestPriority ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t __wrap_cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) {
  (void)on_stream(stream);
  return unsafe();
}
cudaError_t __wrap_cudaEventQuery(cudaEvent_t) {
  return unsafe();
}
cudaError_t __wrap_cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void*) {
  memset(handle, 0, sizeof *handle);
  return unsafe();
}
cudaError_t __wrap_cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t, unsigned) {
  *memory = g_memory;
  return unsafe();
}
cudaError_t __wrap_cudaIpcCloseMemHandle(void*) {
  return unsafe();
}
// CUDA 13.0 behaves like this in every thread mode.
cudaError_t __wrap_cudaStreamGetId(cudaStream_t, unsigned long long* id) {
  *id = 7;
  if (!g_captures) return cudaSuccess;
  g_spoilt++;
  return cudaErrorStreamCaptureUnsupported;
}
cudaError_t __wrap_cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  g_rows = 1;
  memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t __wrap_cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t row_bytes,
                                     size_t rows, cudaMemcpyKind, cudaStream_t) {
  if (row_bytes > to_pitch || row_bytes > from_pitch) return cudaErrorInvalidPitchValue;
  g_rows = rows;
  for (size_t r = 0; r < rows; r++)
    memcpy(static_cast<char*>(to) + r * to_pitch, static_cast<const char*>(from) + r * from_pitch, row_bytes);
  return cudaSuccess;
}
cudaError_t __wrap_cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel) {
  g_loaded.insert(kernel);
  return cudaSuccess;
}
cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult*) {
  return driver_function(name, function);
}
cudaError_t __wrap_cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long,
                                           cudaDriverEntryPointQueryResult*) {  // before CUDA 12.5
  return driver_function(name, function);
}
}

TEST_CASE("a fresh thread has a context once it uses a device, even the one that it seems to have") {
  Error refused{Code::kSuccess, ""};
  bool worked = false;
  std::thread([&] {
    if (!cuda::port()->use(0)) return;
    const auto flushed = cuda::port()->flush_remote_writes();
    worked = bool(flushed);
    if (!flushed) refused = flushed.error();
  }).join();
  INFO(refused.message);
  CHECK(worked);
}

TEST_CASE("a thread goes back to the device that it had, but makes no context there") {
  g_contexts.clear();
  std::vector<int> before;
  std::thread([&] {
    for (const int device : {3, 5, 3}) before.push_back(cuda::port()->use(device).value());
  }).join();
  CHECK(before == std::vector<int>{3, 3, 5});
  CHECK(g_contexts == std::set<int>{3, 5});
}

TEST_CASE("a thread keeps the context that it had, and its streams' where that is one of the device") {
  std::vector<uintptr_t> inside, after;
  const auto visit = [&](auto enter, int device) {
    std::thread([&] {
      t_context = kOther + 1;  // of device 0
      {
        const auto on_device = enter(*cuda::port(), device);
        inside.push_back(t_context);
      }
      after.push_back(t_context);
    }).join();
  };
  visit(cuda::OnDevice::enter, 0);
  visit(cuda::OnDevice::enter, 1);
  visit(cuda::OnDevice::enter_primary, 0);
  CHECK(inside == std::vector<uintptr_t>{kOther + 1, 2, 1});
  CHECK(after == std::vector<uintptr_t>(3, kOther + 1));
}

TEST_CASE("what happens beside a capture does not spoil it") {
  cuda::Port& port = *cuda::port();
  g_captures = true;
  const auto memory = port.allocate(100);
  CHECK(memory);
  const auto handle = port.share(g_memory);
  CHECK(handle);
  if (handle) CHECK(port.map(handle.value()));
  port.unmap(g_memory);
  CHECK(port.reached(nullptr));
  CHECK(port.synchronize(reinterpret_cast<cuda::StreamRef>(g_memory)));
  g_captures = false;
  CHECK(g_spoilt == 0);
  CHECK(t_mode == cudaStreamCaptureModeGlobal);
}

TEST_CASE("a stream has a number while it is captured, and one of every thread another one in each") {
  cuda::Port& port = *cuda::port();
  const auto stream = reinterpret_cast<cuda::StreamRef>(g_memory);
  CHECK(port.id_of(stream, false).value() == 7);
  g_captures = true;
  g_spoilt = 0;
  const auto one = port.id_of(stream, true), other = port.id_of(reinterpret_cast<cuda::StreamRef>(g_memory + 8), true);
  REQUIRE(one);
  REQUIRE(other);
  CHECK(one.value() != other.value());
  CHECK(port.id_of(stream, true).value() == one.value());
  uint64_t here = port.id_of(cudaStreamPerThread, true).value(), there = here;
  std::thread([&] { there = port.id_of(cudaStreamPerThread, true).value(); }).join();
  CHECK(here != there);
  g_captures = false;
  CHECK(g_spoilt == 0);
}

TEST_CASE("small copies from the host go by rows, and copy all bytes and no other") {
  constexpr size_t kMost = (64 << 10) + 2;
  std::vector<char> from(kMost + 1);
  for (size_t i = 0; i < from.size(); i++) from[i] = static_cast<char>(i * 7 + i / 256);
  for (const size_t bytes : {size_t{1}, size_t{2}, size_t{3}, size_t{8}, size_t{4095}, size_t{64 << 10}, kMost}) {
    INFO(bytes);
    std::vector<char> to(bytes + 1, 'x');
    REQUIRE(cuda::port()->copy_in(to.data(), from.data(), bytes, nullptr));
    CHECK(memcmp(to.data(), from.data(), bytes) == 0);
    CHECK(to[bytes] == 'x');
    CHECK(g_rows == (bytes == 1 || bytes == kMost ? 1 : 2));
  }
}

TEST_CASE("more words than the driver takes at once are all written and waited for, in their order") {
  std::vector<uint32_t> memory(600);
  std::vector<cuda::WordOperation> words;
  for (size_t i = 0; i < memory.size(); i++) words.push_back({&memory[i], 1, i % 2 == 1});
  g_batches.clear();
  g_words.clear();
  REQUIRE(cuda::port()->words(words.data(), static_cast<int>(words.size()), nullptr));
  CHECK(g_batches == std::vector<unsigned>{255, 255, 90});
  REQUIRE(g_words.size() == words.size());
  for (size_t i = 0; i < words.size(); i++) CHECK(g_words[i] == reinterpret_cast<CUdeviceptr>(words[i].at));
}

TEST_CASE("whether a driver lets streams write words is asked once for each device") {
  const auto waits = [](int device) { return cuda::port()->describe(device).value().waits_in_streams; };
  g_refuses_words = true;
  CHECK(!waits(2));
  g_refuses_words = false;
  CHECK(!waits(2));
  g_batches.clear();
  g_spoilt = 0;
  g_captures = true;
  for (int turn = 0; turn < 2; turn++) CHECK(waits(3));
  g_captures = false;
  CHECK(g_batches == std::vector<unsigned>{1});
  CHECK(g_spoilt == 0);
}

TEST_CASE("an allocation waits for no other stream of the device") {
  g_default_streams = 0;
  REQUIRE(cuda::port()->allocate(100));
  CHECK(g_default_streams == 0);
}

TEST_CASE("all kernels are loaded before one may wait") {
  g_loaded.clear();
  REQUIRE(cuda::port()->load_kernels());
  CHECK(g_loaded.size() == 71);
}
