// cuda: communicators whose buffers are on a GPU. Ranks of one process that share a GPU have their operation done by
// one kernel (together.cpp); ranks that can map each other's memory exchange through that (phases.h); what neither can
// do takes the way through host memory (staged.cpp).
//
// This header: all that the rest of the room knows of CUDA. Threading: any thread; what concerns a device means the one
// that the calling thread has chosen with use(). Nothing here waits for the GPU, but what says so. An error names the
// call and what CUDA says of it.
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

using StreamRef = void*;  // a cudaStream_t; NULL is the default stream
using EventRef = void*;   // a cudaEvent_t

// Where an operation takes its turn.
struct Turn {
  StreamRef stream = nullptr;
  uint64_t stream_id = 0;
  bool is_captured = false;
};

// Names memory of a device to other processes of the host.
struct IpcHandle {
  std::array<char, 64> bytes{};
};

// What one call of the allocator gave out.
struct Allocation {
  void* memory = nullptr;
  size_t bytes = 0;
};

struct DeviceInfo {
  std::array<char, 16> uuid{};  // the same in all processes
  int multiprocessors = 1;
  bool waits_in_streams = false;  // write_value and wait_value work
  // Of the kernels for gradients: as many as run at once. With half as many, floats become bfloat16 at 40 % of an
  // H200's copy rate instead of 67.
  uint32_t most_span_blocks() const { return static_cast<uint32_t>(multiprocessors) * 8; }
};

// A word that is written in the order of a stream, or waited for to be `value`.
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

  // Memory of allocate(), or of the user's cudaMalloc, as other processes of this host can map it, until it is freed.
  virtual Result<IpcHandle> share(void* memory) = 0;
  virtual Result<void*> map(const IpcHandle& handle) = 0;
  virtual void unmap(void* memory) = 0;  // waits for the device (cudaIpcCloseMemHandle does)
  // Of the device's memory that this is in.
  virtual Result<Allocation> allocation_of(const void* memory) = 0;
  // Lets kernels of the device use the memory of another one of this process.
  virtual Result<void> reach(int other_device) = 0;
  // Whether devices that reach this thread's one can use this memory: cudaMalloc's they can.
  virtual bool is_reachable(const void* memory) = 0;

  // The dmabuf that stands for memory of allocate(), by which network devices know it. kCudaError where the device has
  // none, or what network devices write could not be made visible to it.
  virtual Result<Fd> dmabuf_of(void* memory, size_t bytes) = 0;
  // What network devices have written to the device's memory by now is visible to all that it begins from now on.
  virtual Result<void> flush_remote_writes() = 0;
};

// Streams, the events that order them, and what needs no kernel. What names a stream last takes its turn there, and may
// be captured into a graph.
class GpuStreams {
 public:
  virtual ~GpuStreams() = default;
  virtual Result<void> copy(void* to, const void* from, size_t bytes, StreamRef stream) = 0;
  // From pinned memory of the host to the device, without a turn of this process on its multiprocessors.
  virtual Result<void> copy_in(void* to, const void* from, size_t bytes, StreamRef stream) {
    return copy(to, from, bytes, stream);
  }
  // One after the other; what the stream did before is visible to who sees a word written.
  virtual Result<void> words(const WordOperation* operations, int n, StreamRef stream) = 0;
  virtual Result<void> zero(void* memory, size_t bytes, StreamRef stream) = 0;
  virtual Result<void> record(EventRef event, StreamRef stream) = 0;
  virtual Result<void> wait(StreamRef stream, EventRef event) = 0;

  virtual Result<bool> is_capturing(StreamRef stream) = 0;
  // Of the stream that the handle means in the calling thread. No two streams have the same, also one after the other:
  // handles of streams that were destroyed are given out again. A stream that is captured may have another number then.
  virtual Result<uint64_t> id_of(StreamRef stream, bool is_captured) = 0;
  // Whether the handle means another stream in every thread (cudaStreamPerThread).
  virtual bool is_per_thread(StreamRef stream) = 0;
  // An urgent one goes on while others of the device wait, which hold up what shares a hardware queue with them.
  virtual Result<StreamRef> create_stream(bool is_urgent = false) = 0;
  virtual void destroy_stream(StreamRef stream) = 0;
  // A timed one knows when it was reached.
  virtual Result<EventRef> create_event(bool is_timed = false) = 0;
  virtual void destroy_event(EventRef event) = 0;
  virtual Result<void> synchronize(StreamRef stream) = 0;  // waits
  virtual Result<bool> reached(EventRef event) = 0;        // also if it was never recorded
  // Between two timed events that were reached; negative if `to` was first.
  virtual Result<double> seconds_between(EventRef from, EventRef to) = 0;
};

// All of it: devices and their kernels besides. The bases are virtual so that each can be implemented by a class of its
// own (runtime.cpp).
class Port : public virtual GpuMemory, public virtual GpuStreams {
 public:
  // kCudaError without a driver or GPU, saying which.
  virtual Result<int> device_count() = 0;
  virtual Result<DeviceInfo> describe(int device) = 0;  // the calling thread's
  // For the calling thread; the device that it had before, or this one if it had none that the process uses.
  virtual Result<int> use(int device) = 0;

  // Now, instead of at the first launch, which would wait for the device: its kernels may be waiting for other ranks'.
  virtual Result<void> load_kernels() = 0;
  // In turn, as what GpuStreams has.
  virtual Result<void> run(const JobList& list, StreamRef stream) = 0;
  // All blocks at once; kCudaError where the device has no room for them.
  virtual Result<void> run(const ProgramCall& call, StreamRef stream) = 0;
  // Waits on the device for other ranks, whose kernels have to run at the same time.
  virtual Result<void> run(const LineCall& call, StreamRef stream) = 0;
  virtual Result<void> run(const SpanCall& call, uint32_t n_blocks, StreamRef stream) = 0;
  virtual Result<void> run(const FactorCall& call, uint32_t n_blocks, StreamRef stream) = 0;
};

// A call of which each tile is a block's work (gradients.h), with no more blocks than that or `most_blocks`.
template <class Call>
Result<void> run_tiles(Port& port, const Call& call, uint32_t most_blocks, StreamRef stream) {
  const uint64_t tiles = tiles_of(call);
  if (tiles == 0) return {};
  return port.run(call, static_cast<uint32_t>(tiles < most_blocks ? tiles : most_blocks), stream);
}

// An event that is made when it is first recorded.
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

// Waits for what `put` puts into the stream that it is given, which nothing else waits in.
template <class Put>
Result<void> do_now(GpuStreams& streams, Put&& put) {
  TUTTI_TRY_ASSIGN(const StreamRef stream, streams.create_stream(true));
  Result<void> done = put(stream);
  if (done) done = streams.synchronize(stream);
  streams.destroy_stream(stream);
  return done;
}

// A device for the length of a call; the caller has its own back afterwards.
class OnDevice {
 public:
  static Result<OnDevice> enter(Port& port, int device) {
    TUTTI_TRY_ASSIGN(const int before, port.use(device));
    return OnDevice(port, before == device ? -1 : before);
  }
  OnDevice(OnDevice&& other) noexcept : port_(other.port_), before_(std::exchange(other.before_, -1)) {}
  OnDevice& operator=(OnDevice&&) = delete;
  ~OnDevice() {
    if (before_ >= 0) (void)port_.use(before_);
  }

 private:
  OnDevice(Port& port, int before) : port_(port), before_(before) {}
  Port& port_;
  int before_;
};

// The CUDA runtime, or what a test has put in its place; null where this library was built without CUDA.
Port* port();
void set_port(Port* port);
Port* runtime_port();  // the former; null likewise

}  // namespace tutti::cuda
