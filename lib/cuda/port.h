// cuda: communicators whose buffers are on a GPU. If all ranks share a process and a GPU, one kernel does their
// operation (together.cpp); ranks that can map each other's memory exchange through it (phases.h); all else goes
// through network devices (direct.cpp) or host memory (staged.cpp).
//
// This header: all that the rest of the room knows of CUDA. Threading: any thread; what concerns a device means the one
// that the calling thread has chosen with use(). Nothing here waits for the GPU unless it says so. An error names the
// call and CUDA's reason.
#pragma once

#include <array>
#include <cstdint>

#include "base/fd.h"
#include "base/result.h"
#include "kernels/cuda/gradients.h"
#include "kernels/cuda/jobs.h"
#include "kernels/cuda/lines.h"
#include "kernels/cuda/program.h"

namespace tutti::cuda {

using StreamRef = void*;   // a cudaStream_t; NULL is the default stream
using EventRef = void*;    // a cudaEvent_t
using ContextRef = void*;  // a CUcontext

// Where an operation is enqueued.
struct Turn {
  StreamRef stream = nullptr;
  uint64_t stream_id = 0;
  bool is_captured = false;
};

// Identifies device memory to other processes of the host.
struct IpcHandle {
  std::array<char, 64> bytes{};
};

// What one call of the allocator returned.
struct Allocation {
  void* memory = nullptr;
  size_t bytes = 0;
};

struct DeviceInfo {
  std::array<char, 16> uuid{};  // the same in all processes
  int multiprocessors = 1;
  bool waits_in_streams = false;  // GpuStreams::words() works
  // How many blocks of the gradient kernels run at once. With half as many, floats become bfloat16 at 40 % of an H200's
  // copy rate instead of 67 %.
  uint32_t most_span_blocks() const { return static_cast<uint32_t>(multiprocessors) * 8; }
};

inline constexpr char kNoWaits[] = "streams of this device or driver cannot wait for words in memory";

// A word that a stream writes in order, or waits for until it is `value`.
struct WordOperation {
  uint32_t* at = nullptr;
  uint32_t value = 0;
  bool waits = false;
};

// Memory of a device, and memory of the host that it can use.
class GpuMemory {
 public:
  virtual ~GpuMemory() = default;
  // Zeroed memory of the device, aligned to 512 bytes. Waits for the device.
  virtual Result<void*> allocate(size_t bytes) = 0;
  // Zeroed memory of the host that the device can use, at the same address.
  virtual Result<void*> allocate_host(size_t bytes) = 0;
  virtual void free(void* memory) = 0;
  virtual void free_host(void* memory) = 0;

  // Lets other processes of this host map memory of allocate(), or of the user's cudaMalloc, until it is freed.
  virtual Result<IpcHandle> share(void* memory) = 0;
  virtual Result<void*> map(const IpcHandle& handle) = 0;
  virtual void unmap(void* memory) = 0;  // waits for the device (cudaIpcCloseMemHandle does)
  // The allocation of device memory that `memory` is in.
  virtual Result<Allocation> allocation_of(const void* memory) = 0;
  // Lets kernels of the device use the memory of another device of this process.
  virtual Result<void> reach(int other_device) = 0;
  // Whether devices that reach this thread's device can use this memory. They can use cudaMalloc's.
  virtual bool is_reachable(const void* memory) = 0;

  // The dmabuf by which network devices know memory of allocate(). kCudaError where the device has none, or where
  // writes by network devices could not be made visible to it.
  virtual Result<Fd> dmabuf_of(void* memory, size_t bytes) = 0;
  // Makes what network devices have written to the device's memory so far visible to all that it begins from now on.
  virtual Result<void> flush_remote_writes() = 0;
};

// Streams, the events that order them, and what needs no kernel. Functions that enqueue work in a stream may be
// captured into a graph.
class GpuStreams {
 public:
  virtual ~GpuStreams() = default;
  virtual Result<void> copy(void* to, const void* from, size_t bytes, StreamRef stream) = 0;
  // From pinned host memory to the device, without this process's turn on the device's multiprocessors.
  virtual Result<void> copy_in(void* to, const void* from, size_t bytes, StreamRef stream) {
    return copy(to, from, bytes, stream);
  }
  // One after the other. Whoever sees a word written also sees what the stream did before.
  virtual Result<void> words(const WordOperation* operations, int n, StreamRef stream) = 0;
  virtual Result<void> zero(void* memory, size_t bytes, StreamRef stream) = 0;
  virtual Result<void> record(EventRef event, StreamRef stream) = 0;
  virtual Result<void> wait(StreamRef stream, EventRef event) = 0;

  // kInvalidUsage if its capture has become invalid.
  virtual Result<bool> is_capturing(StreamRef stream) = 0;
  // The id of the stream that the handle means in the calling thread. No other stream ever has it, whereas handles of
  // destroyed streams are reused. A stream may have another id while it is captured.
  virtual Result<uint64_t> id_of(StreamRef stream, bool is_captured) = 0;
  // Whether the handle means a different stream in every thread (cudaStreamPerThread).
  virtual bool is_per_thread(StreamRef stream) = 0;
  // An urgent stream runs on while others of the device wait and hold up what shares a hardware queue with them.
  virtual Result<StreamRef> create_stream(bool is_urgent = false) = 0;
  virtual void destroy_stream(StreamRef stream) = 0;
  // A timed event keeps the time at which it was reached.
  virtual Result<EventRef> create_event(bool is_timed = false) = 0;
  virtual void destroy_event(EventRef event) = 0;
  virtual Result<void> synchronize(StreamRef stream) = 0;  // waits
  virtual Result<bool> reached(EventRef event) = 0;        // true even if it was never recorded
  // Between two timed events that were reached; negative if `to` was first.
  virtual Result<double> seconds_between(EventRef from, EventRef to) = 0;
};

// The whole port: also devices and their kernels. The bases are virtual so that each can be implemented by a class of
// its own (runtime.cpp).
class Port : public virtual GpuMemory, public virtual GpuStreams {
 public:
  // kCudaError without a driver or a GPU, saying which is missing.
  virtual Result<int> device_count() = 0;
  virtual Result<DeviceInfo> describe(int device) = 0;  // the calling thread's
  // Sets the calling thread's device. Returns its previous one, or this one if it had none that the process uses.
  virtual Result<int> use(int device) = 0;
  // Whether the calling thread has a context of the device, which need not be the primary one, which use() chooses.
  virtual bool is_current(int /*device*/) { return false; }
  virtual ContextRef context() { return nullptr; }  // the calling thread's; null if it has none
  virtual void set_context(ContextRef /*context*/) {}

  // Loads them now. The first launch would wait for the device, whose kernels may be waiting for other ranks.
  virtual Result<void> load_kernels() = 0;
  // Enqueued in the stream, like the functions of GpuStreams.
  virtual Result<void> run(const JobList& list, StreamRef stream) = 0;
  // All blocks at once; kCudaError where the device has no room for them.
  virtual Result<void> run(const ProgramCall& call, StreamRef stream) = 0;
  // The kernel waits for other ranks' kernels, which have to run at the same time.
  virtual Result<void> run(const LineCall& call, StreamRef stream) = 0;
  virtual Result<void> run(const SpanCall& call, uint32_t n_blocks, StreamRef stream) = 0;
  virtual Result<void> run(const FactorCall& call, uint32_t n_blocks, StreamRef stream) = 0;
};

// Runs a call, each tile of which is a block's work (gradients.h), with a block per tile or at most `most_blocks`.
template <class Call>
Result<void> run_tiles(Port& port, const Call& call, uint32_t most_blocks, StreamRef stream) {
  const uint64_t tiles = tiles_of(call);
  if (tiles == 0) return {};
  return port.run(call, static_cast<uint32_t>(tiles < most_blocks ? tiles : most_blocks), stream);
}

// An event that is created when it is first recorded.
class OwnedEvent {
 public:
  explicit OwnedEvent(GpuStreams& streams) : streams_(streams) {}
  ~OwnedEvent() {
    if (event_ != nullptr) streams_.destroy_event(event_);
  }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  Result<void> record(StreamRef stream) {
    if (event_ == nullptr) {
      TUTTI_TRY_ASSIGN(event_, streams_.create_event());
    }
    return streams_.record(event_, stream);
  }
  EventRef get() const { return event_; }  // null before

 private:
  GpuStreams& streams_;
  EventRef event_ = nullptr;
};

// Runs what `put` enqueues in the stream that it is given, a new one, and waits for it.
template <class Put>
Result<void> do_now(GpuStreams& streams, Put&& put) {
  TUTTI_TRY_ASSIGN(const StreamRef stream, streams.create_stream(true));
  Result<void> done = put(stream);
  if (done) done = streams.synchronize(stream);
  streams.destroy_stream(stream);
  return done;
}

// Selects a device for the length of a scope, and then restores the caller's.
class OnDevice {
 public:
  // A thread that has a context of the device keeps it, since its streams may be that one's (a green context's).
  static Result<OnDevice> enter(Port& port, int device) {
    if (port.is_current(device)) return OnDevice(port, -1, nullptr);
    return enter_primary(port, device);
  }
  // For what other threads use, too.
  static Result<OnDevice> enter_primary(Port& port, int device) {
    const ContextRef context = port.context();
    TUTTI_TRY_ASSIGN(const int before, port.use(device));
    return OnDevice(port, before == device ? -1 : before, context);
  }
  OnDevice(OnDevice&& other) noexcept
      : port_(other.port_),
        before_(std::exchange(other.before_, -1)),
        context_(std::exchange(other.context_, nullptr)) {}
  OnDevice& operator=(OnDevice&&) = delete;
  ~OnDevice() {
    if (before_ >= 0) (void)port_.use(before_);
    if (context_ != nullptr) port_.set_context(context_);
  }

 private:
  OnDevice(Port& port, int before, ContextRef context) : port_(port), before_(before), context_(context) {}
  Port& port_;
  int before_;
  ContextRef context_;
};

// The CUDA runtime, or what a test has put in its place; null where this library was built without CUDA.
Port* port();
void set_port(Port* port);
Port* runtime_port();  // the CUDA runtime; null without CUDA

}  // namespace tutti::cuda
