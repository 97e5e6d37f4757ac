// The port over CUDA's runtime, which loads the driver at its first call.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/port.h"
#include "kernels/cuda/launch.h"

namespace tutti::cuda {
namespace {

Error cuda_error(const char* call, cudaError_t code) {
  (void)cudaGetLastError();  // otherwise somebody else's next call would return it
  return {Code::kCudaError, format("%s: %s (CUDA error %d)", call, cudaGetErrorString(code), static_cast<int>(code))};
}

Error driver_error(const std::string& call, CUresult code) {
  return {Code::kCudaError, format("%s: CUDA driver error %d", call.c_str(), static_cast<int>(code))};
}

Result<void> check(const char* call, cudaError_t code) {
  if (code != cudaSuccess) return cuda_error(call, code);
  return {};
}

cudaStream_t stream_of(StreamRef stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t event_of(EventRef event) {
  return static_cast<cudaEvent_t>(event);
}

// For calls that belong to none of the program's captures, in this thread or another one: during captures CUDA refuses
// allocations, queries and waits, which would also invalidate the capture.
class ApartFromCaptures {
 public:
  ApartFromCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~ApartFromCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// A function of the driver that has no counterpart in the runtime; null where the driver is too old.
template <class Function>
Function* driver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status;
#if CUDART_VERSION >= 12050
  constexpr unsigned kSince = 12000;
  const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &function, kSince, cudaEnableDefault, &status);
#else
  const cudaError_t code = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &status);
#endif
  (void)cudaGetLastError();
  return code == cudaSuccess ? reinterpret_cast<Function*>(function) : nullptr;
}

auto batch_mem_op() {
  static const auto found = driver<decltype(cuStreamBatchMemOp)>("cuStreamBatchMemOp");
  return found;
}

// Of the calling thread's device.
Result<int> attribute(CUdevice_attribute which) {
  static const auto current = driver<decltype(cuCtxGetDevice)>("cuCtxGetDevice");
  static const auto ask = driver<decltype(cuDeviceGetAttribute)>("cuDeviceGetAttribute");
  CUdevice device = 0;
  int value = 0;
  CUresult code = CUDA_ERROR_NOT_FOUND;
  if (current != nullptr && ask != nullptr) code = current(&device);
  if (code == CUDA_SUCCESS) code = ask(&value, which, device);
  if (code == CUDA_SUCCESS) return value;
  return driver_error(format("cuDeviceGetAttribute(%d)", static_cast<int>(which)), code);
}

// Whether this process has a context on it. cudaSetDevice() creates one if there is none: some 500 MiB of that GPU.
bool has_context(int device) {
  static const auto ask = driver<decltype(cuDevicePrimaryCtxGetState)>("cuDevicePrimaryCtxGetState");
  unsigned flags = 0;
  int is_active = 0;
  return ask == nullptr || (ask(device, &flags, &is_active) == CUDA_SUCCESS && is_active != 0);
}

// A stream of the highest priority: those have hardware queues of their own.
cudaError_t create_urgent(cudaStream_t* stream) {
  int least = 0, most = 0;
  const cudaError_t code = cudaDeviceGetStreamPriorityRange(&least, &most);
  return code == cudaSuccess ? cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, most) : code;
}

class RuntimeMemory : public virtual GpuMemory {
 public:
  Result<void*> allocate_host(size_t bytes) override {
    const ApartFromCaptures apart;
    void* memory = nullptr;
    TUTTI_TRY(check("cudaHostAlloc", cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped)));
    memset(memory, 0, bytes);
    return memory;
  }

  void free(void* memory) override {
    const ApartFromCaptures apart;
    (void)cudaFree(memory);
  }
  void free_host(void* memory) override {
    const ApartFromCaptures apart;
    (void)cudaFreeHost(memory);
  }

  Result<IpcHandle> share(void* memory) override {
    const ApartFromCaptures apart;
    cudaIpcMemHandle_t handle;
    TUTTI_TRY(check("cudaIpcGetMemHandle", cudaIpcGetMemHandle(&handle, memory)));
    return std::bit_cast<IpcHandle>(handle);
  }

  Result<void*> map(const IpcHandle& handle) override {
    const ApartFromCaptures apart;
    void* memory = nullptr;
    TUTTI_TRY(check("cudaIpcOpenMemHandle", cudaIpcOpenMemHandle(&memory, std::bit_cast<cudaIpcMemHandle_t>(handle),
                                                                 cudaIpcMemLazyEnablePeerAccess)));
    return memory;
  }

  void unmap(void* memory) override {
    const ApartFromCaptures apart;
    (void)cudaIpcCloseMemHandle(memory);
  }

  Result<Allocation> allocation_of(const void* memory) override {
    static const auto ask = driver<decltype(cuMemGetAddressRange)>("cuMemGetAddressRange");
    if (ask == nullptr) return Error{Code::kCudaError, "this CUDA driver has no cuMemGetAddressRange"};
    CUdeviceptr base = 0;
    Allocation found;
    const CUresult code = ask(&base, &found.bytes, reinterpret_cast<CUdeviceptr>(memory));
    if (code != CUDA_SUCCESS)
      return Error{Code::kCudaError,
                   format("cuMemGetAddressRange of %p: CUDA driver error %d: is it memory of this device?", memory,
                          static_cast<int>(code))};
    found.memory = reinterpret_cast<void*>(base);
    return found;
  }

  Result<Fd> dmabuf_of(void* memory, size_t bytes) override {
    static const auto ask = driver<decltype(cuMemGetHandleForAddressRange)>("cuMemGetHandleForAddressRange");
    if (ask == nullptr)
      return Error{Code::kCudaError, "this CUDA driver has no dmabufs: use one of CUDA 11.7 or later"};
    TUTTI_TRY_ASSIGN(const int has_dmabufs, attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED));
    if (has_dmabufs == 0)
      return Error{Code::kCudaError,
                   "this GPU has no dmabufs: they need NVIDIA's open kernel modules and Linux 5.12 or later"};
    TUTTI_TRY(flush_remote_writes());
    int fd = -1;
    const CUresult code =
        ask(&fd, reinterpret_cast<CUdeviceptr>(memory), bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (code == CUDA_SUCCESS) return Fd(fd);
    return driver_error(format("cuMemGetHandleForAddressRange of %zu bytes at %p", bytes, memory), code);
  }

  // Not needed where writes arrive in the order in which the host learns of them.
  Result<void> flush_remote_writes() override {
    static const auto flush = driver<decltype(cuFlushGPUDirectRDMAWrites)>("cuFlushGPUDirectRDMAWrites");
    TUTTI_TRY_ASSIGN(const int ordering, attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING));
    if (ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER) return {};
    TUTTI_TRY_ASSIGN(const int options, attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS));
    if (flush == nullptr || (options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) == 0)
      return Error{Code::kCudaError,
                   "the host cannot make this GPU see what network devices have written to its memory"};
    const CUresult code =
        flush(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
    if (code == CUDA_SUCCESS) return {};
    return driver_error("cuFlushGPUDirectRDMAWrites", code);
  }

  Result<void> reach(int other_device) override {
    const cudaError_t code = cudaDeviceEnablePeerAccess(other_device, 0);
    if (code == cudaSuccess) return {};
    const Error error = cuda_error("cudaDeviceEnablePeerAccess", code);
    if (code == cudaErrorPeerAccessAlreadyEnabled) return {};
    return error;
  }

  // cudaDeviceEnablePeerAccess() covers cudaMalloc's memory. Memory of pools and of the virtual memory API has access
  // rights of its own, which its owner sets; it is told apart by not being suited to cudaIpcGetMemHandle.
  bool is_reachable(const void* memory) override {
    cudaPointerAttributes attributes;
    int device = -1, suits_ipc = 0;
    if (cudaGetDevice(&device) != cudaSuccess || cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) {
      (void)cudaGetLastError();
      return false;
    }
    if (attributes.type != cudaMemoryTypeDevice || attributes.device != device) return false;
    static const auto ask = driver<decltype(cuPointerGetAttribute)>("cuPointerGetAttribute");
    return ask != nullptr &&
           ask(&suits_ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, reinterpret_cast<CUdeviceptr>(memory)) ==
               CUDA_SUCCESS &&
           suits_ipc != 0;
  }
};

class RuntimeStreams : public virtual GpuStreams {
 public:
  Result<void> copy(void* to, const void* from, size_t bytes, StreamRef stream) override {
    return check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)));
  }

  // The driver writes a single row of up to a few KiB into the queue of the multiprocessors' work, which waits for this
  // process's turn where several share the GPU (two on an H100: 269 us). Two rows go to a copy engine (9 us). An odd
  // number of bytes is copied as two even pieces that overlap.
  Result<void> copy_in(void* to, const void* from, size_t bytes, StreamRef stream) override {
    constexpr size_t kRowMost = 64 << 10;
    if (bytes < 2 || bytes > kRowMost) return copy(to, from, bytes, stream);
    const size_t row = bytes / 2;
    const auto rows = [&](size_t at) {
      return check("cudaMemcpy2DAsync",
                   cudaMemcpy2DAsync(static_cast<char*>(to) + at, row, static_cast<const char*>(from) + at, row, row, 2,
                                     cudaMemcpyDefault, stream_of(stream)));
    };
    TUTTI_TRY(rows(0));
    return bytes % 2 == 0 ? Result<void>() : rows(1);
  }

  Result<void> words(const WordOperation* operations, int n, StreamRef stream) override {
    if (batch_mem_op() == nullptr)
      return Error{Code::kCudaError, "this CUDA driver has no cuStreamBatchMemOp: use one of CUDA 12 or later"};
    constexpr int kMost = 255;  // cuda.h: "Must be less than 256"
    std::vector<CUstreamBatchMemOpParams> params(static_cast<size_t>(n));
    for (int i = 0; i < n; i++) {
      CUstreamBatchMemOpParams& p = params[static_cast<size_t>(i)];
      memset(&p, 0, sizeof p);
      const auto address = reinterpret_cast<CUdeviceptr>(operations[i].at);
      if (operations[i].waits) {
        p.waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32, address, {operations[i].value}, CU_STREAM_WAIT_VALUE_EQ, 0};
      } else {
        p.writeValue = {
            CU_STREAM_MEM_OP_WRITE_VALUE_32, address, {operations[i].value}, CU_STREAM_WRITE_VALUE_DEFAULT, 0};
      }
    }
    for (int i = 0; i < n; i += kMost) {
      const CUresult code =
          batch_mem_op()(stream_of(stream), static_cast<unsigned>(std::min(kMost, n - i)), params.data() + i, 0);
      if (code != CUDA_SUCCESS) return driver_error("cuStreamBatchMemOp", code);
    }
    return {};
  }

  Result<void> zero(void* memory, size_t bytes, StreamRef stream) override {
    return check("cudaMemsetAsync", cudaMemsetAsync(memory, 0, bytes, stream_of(stream)));
  }

  Result<void> record(EventRef event, StreamRef stream) override {
    return check("cudaEventRecord", cudaEventRecord(event_of(event), stream_of(stream)));
  }
  Result<void> wait(StreamRef stream, EventRef event) override {
    return check("cudaStreamWaitEvent", cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
  }

  Result<bool> is_capturing(StreamRef stream) override {
    cudaStreamCaptureStatus status;
    TUTTI_TRY(check("cudaStreamIsCapturing", cudaStreamIsCapturing(stream_of(stream), &status)));
    if (status == cudaStreamCaptureStatusInvalidated)
      return Error{Code::kInvalidUsage, "the capture of this stream has become invalid: end it, then call again"};
    return status != cudaStreamCaptureStatusNone;
  }

  // CUDA gives no id of a captured stream (cudaStreamGetId: error 900, seen with CUDA 13.0). The stream lives as long
  // as its capture, so its handle is the id, except for the handle that means a different stream in every thread.
  Result<uint64_t> id_of(StreamRef stream, bool is_captured) override {
    static thread_local char here;
    if (is_captured) return reinterpret_cast<uint64_t>(is_per_thread(stream) ? &here : stream);
    unsigned long long id = 0;
    TUTTI_TRY(check("cudaStreamGetId", cudaStreamGetId(stream_of(stream), &id)));
    return uint64_t{id};
  }
  bool is_per_thread(StreamRef stream) override { return stream_of(stream) == cudaStreamPerThread; }

  Result<StreamRef> create_stream(bool is_urgent) override {
    cudaStream_t stream;
    TUTTI_TRY(check("cudaStreamCreate",
                    is_urgent ? create_urgent(&stream) : cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
    return StreamRef{stream};
  }
  void destroy_stream(StreamRef stream) override { (void)cudaStreamDestroy(stream_of(stream)); }
  Result<EventRef> create_event(bool is_timed) override {
    cudaEvent_t event;
    const unsigned flags = is_timed ? cudaEventDefault : cudaEventDisableTiming;
    TUTTI_TRY(check("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&event, flags)));
    return EventRef{event};
  }
  void destroy_event(EventRef event) override { (void)cudaEventDestroy(event_of(event)); }

  Result<void> synchronize(StreamRef stream) override {
    const ApartFromCaptures apart;
    return check("cudaStreamSynchronize", cudaStreamSynchronize(stream_of(stream)));
  }
  Result<bool> reached(EventRef event) override {
    const ApartFromCaptures apart;
    const cudaError_t code = cudaEventQuery(event_of(event));
    if (code == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    TUTTI_TRY(check("cudaEventQuery", code));
    return true;
  }
  Result<double> seconds_between(EventRef from, EventRef to) override {
    float milliseconds = 0;
    TUTTI_TRY(check("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, event_of(from), event_of(to))));
    return static_cast<double>(milliseconds) / 1e3;
  }
};

std::vector<const void*> gradient_kernels() {
  std::vector<const void*> kernels;
  SpanCall call;
  // Not every step depends on both types, so some kernels are listed several times.
  for (const SpanStep step : {SpanStep::kNarrow, SpanStep::kWiden, SpanStep::kNonFinite, SpanStep::kDigest,
                              SpanStep::kQuantise, SpanStep::kDequantise})
    for (const DataType wide : {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16, DataType::kBfloat16})
      for (const DataType small : {DataType::kFloat16, DataType::kBfloat16, DataType::kInt8, DataType::kFloat8e4m3}) {
        call.step = step;
        call.wide = wide;
        call.small = small;
        kernels.push_back(span_kernel(call));
      }
  for (const FactorPart part : {FactorPart::kProject, FactorPart::kOrthonormalise, FactorPart::kFindQ,
                                FactorPart::kRebuild, FactorPart::kKeepQ})
    kernels.push_back(factor_kernel(part));
  return kernels;
}

template <class Call>
Result<void> launch(const void* kernel, uint32_t n_blocks, uint32_t n_threads, const Call& call, StreamRef stream) {
  void* arguments[] = {const_cast<Call*>(&call)};  // copied by the call
  return check("cudaLaunchKernel",
               cudaLaunchKernel(kernel, dim3(n_blocks), dim3(n_threads), arguments, 0, stream_of(stream)));
}

class Runtime final : public Port, public RuntimeMemory, public RuntimeStreams {
 public:
  // Zeroed on a separate stream: the default one waits for the device's other streams, whose kernels may be waiting for
  // another rank.
  Result<void*> allocate(size_t bytes) override {
    const ApartFromCaptures apart;
    void* memory = nullptr;
    TUTTI_TRY(check("cudaMalloc", cudaMalloc(&memory, bytes)));
    const auto cleared = do_now(*this, [&](StreamRef stream) { return zero(memory, bytes, stream); });
    if (cleared) return memory;
    free(memory);
    return cleared.error();
  }

  Result<int> device_count() override {
    int count = 0;
    TUTTI_TRY(check("cudaGetDeviceCount", cudaGetDeviceCount(&count)));
    return count;
  }

  Result<DeviceInfo> describe(int device) override {
    cudaDeviceProp properties;
    TUTTI_TRY(check("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, device)));
    DeviceInfo info;
    info.uuid = std::bit_cast<decltype(info.uuid)>(properties.uuid);
    info.multiprocessors = properties.multiProcessorCount;
    info.waits_in_streams = can_write_words(device);
    return info;
  }

  // cudaSetDevice() is called even if the thread has this device already: a new thread has device number 0 without a
  // context, and the driver's own functions fail without one. Going back to such a device would create its context.
  Result<int> use(int device) override {
    int before = 0;
    TUTTI_TRY(check("cudaGetDevice", cudaGetDevice(&before)));
    const bool may_go_back = before == device || has_context(before);
    TUTTI_TRY(check("cudaSetDevice", cudaSetDevice(device)));
    return may_go_back ? before : device;
  }

  bool is_current(int device) override {
    static const auto current = driver<decltype(cuCtxGetDevice)>("cuCtxGetDevice");
    CUdevice found = -1;
    return current != nullptr && current(&found) == CUDA_SUCCESS && found == device;
  }
  ContextRef context() override {
    static const auto current = driver<decltype(cuCtxGetCurrent)>("cuCtxGetCurrent");
    CUcontext found = nullptr;
    return current != nullptr && current(&found) == CUDA_SUCCESS ? found : nullptr;
  }
  void set_context(ContextRef context) override {
    static const auto set = driver<decltype(cuCtxSetCurrent)>("cuCtxSetCurrent");
    if (set != nullptr) (void)set(static_cast<CUcontext>(context));
  }

  Result<void> load_kernels() override {
    std::vector<const void*> kernels = gradient_kernels();
    kernels.push_back(copy_kernel());
    for (int t = 0; t < kDataTypes; t++) {
      LineCall call{};
      call.dtype = static_cast<DataType>(t);
      kernels.insert(kernels.end(), {reduce_kernel(call.dtype), program_kernel(call.dtype)});
      for (const int16_t hops : {1, 2}) {
        call.n_hops = hops;
        kernels.push_back(line_kernel(call));
      }
    }
    cudaFuncAttributes attributes;
    for (const void* kernel : kernels)
      TUTTI_TRY(check("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, kernel)));
    return {};
  }

  Result<void> run(const JobList& list, StreamRef stream) override {
    const void* kernel = list.only_bytes ? copy_kernel() : reduce_kernel(list.dtype);
    return launch(kernel, tiles_of(list), kJobThreads, list, stream);
  }

  Result<void> run(const ProgramCall& call, StreamRef stream) override {
    void* arguments[] = {const_cast<ProgramCall*>(&call)};  // copied by the call
    return check("cudaLaunchCooperativeKernel",
                 cudaLaunchCooperativeKernel(program_kernel(call.dtype), dim3(blocks_of(call)), dim3(kProgramThreads),
                                             arguments, 0, stream_of(stream)));
  }

  Result<void> run(const LineCall& call, StreamRef stream) override {
    return launch(line_kernel(call), line_blocks(call), line_threads(call), call, stream);
  }

  Result<void> run(const SpanCall& call, uint32_t n_blocks, StreamRef stream) override {
    return launch(span_kernel(call), n_blocks, kGradientThreads, call, stream);
  }

  Result<void> run(const FactorCall& call, uint32_t n_blocks, StreamRef stream) override {
    return launch(factor_kernel(call.part), n_blocks, kGradientThreads, call, stream);
  }

 private:
  // A driver may know the function and refuse it. Asked once, when a device's first communicator is created; the word
  // is not freed, because that would wait for the device.
  bool can_write_words(int device) {
    const std::lock_guard lock(mutex_);
    if (const auto known = writes_words_.find(device); known != writes_words_.end()) return known->second;
    const auto memory = allocate(sizeof(uint32_t));
    if (!memory) return true;  // what really needs the memory says so
    const WordOperation word{static_cast<uint32_t*>(memory.value()), 1};
    const ApartFromCaptures apart;
    bool is_refused = false;
    (void)do_now(*this, [&](StreamRef stream) {
      const auto written = words(&word, 1, stream);
      is_refused = !written;
      return written;
    });
    return writes_words_[device] = !is_refused;
  }

  std::mutex mutex_;
  std::map<int, bool> writes_words_;  // by device
};

}  // namespace

Port* runtime_port() {
  static auto* runtime = new Runtime;  // never destroyed: other threads may outlive main
  return runtime;
}

}  // namespace tutti::cuda
