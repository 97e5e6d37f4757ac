// A CUDA runtime on host memory: devices, streams that are threads, events, graphs, memory that other processes can
// map. Kernels are their CPU twins (twins.h), or the GPU kernels' PTX (ptx/). It is stricter than the real runtime
// where mistakes would go unnoticed, and it can inject failures.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/port.h"
#include "exec/stream.h"
#include "sanitized.h"

namespace tutti_test {

struct FakeCapture;

// Executes kernels; here as their CPU twins, each at once when it is called.
class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual bool are_interpreted() const { return false; }
  // Whether that many blocks that wait for each other can run at the same time.
  virtual bool hold(uint32_t /*n_blocks*/) const { return true; }
  // Memory that kernels will use, and memory that they will not use any more.
  virtual void know(void*, size_t) {}
  virtual void forget(void*) {}
  virtual void run(const tutti::cuda::JobList& list);
  virtual void run(const tutti::cuda::ProgramCall& call);
  virtual void run(const tutti::cuda::LineCall& call);
  virtual void run(const tutti::cuda::SpanCall& call, uint32_t n_blocks);
  virtual void run(const tutti::cuda::FactorCall& call, uint32_t n_blocks);
};
// This program's kernels: the twins, unless it sets others (nullptr restores the twins).
Kernels& kernels();
void use_kernels(Kernels* kernels);
// Tests skip cases that are similar to others.
inline bool is_slow() {
  return kSanitized || kernels().are_interpreted();
}

// How much of its work a stream has finished.
struct FakeProgress {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t given = 0, done = 0;
};

// The works of a capture that precede a point of it, by number.
using FakePast = std::set<size_t>;

struct FakeStream {
  std::shared_ptr<tutti::Stream> queue;
  std::shared_ptr<FakeProgress> progress;
  uint64_t id = 0;
  int device = 0;
  std::shared_ptr<FakeCapture> capture;
  FakePast past;
  bool is_blocking = false;  // waits for the device's default stream, and vice versa
};

struct FakeEvent {
  std::atomic<int64_t> reached_ns{0};
  mutable std::mutex mutex;        // guards the rest: one of several ranks that share it may record while others query
  std::shared_future<void> point;  // invalid if it was never recorded
  std::shared_ptr<FakeCapture> captured_in;
  FakePast past;
};

// The handle that means a separate stream in every thread, as in CUDA.
inline const tutti::cuda::StreamRef kStreamPerThread = reinterpret_cast<void*>(uintptr_t{2});

// Captured works, in an order that preserves that of every stream.
struct FakeGraph {
  std::vector<std::function<void()>> works;
};

// A capture in progress, or one that is over.
struct FakeCapture {
  FakeGraph* graph = nullptr;
  std::vector<FakeStream*> streams;  // the one that it began in, then those that have joined
  std::atomic<bool> is_spoilt{false}, is_over{false};
};

// With CUDA's error number; cudaErrorInvalidValue if no other one fits.
tutti::Error refuse(const std::string& message, int code = 1);
int last_refusal();  // of this thread
bool has_device();   // this thread has chosen one

class FakePort final : public tutti::cuda::Port {
 public:
  explicit FakePort(int n_devices) : n_devices_(n_devices) { tutti::cuda::set_port(this); }
  ~FakePort() override;

  // Failures that can be injected.
  bool refuses_maps = false;                             // IPC handles cannot be opened
  bool corrupts_maps = false;                            // writes to mapped memory do not arrive
  std::atomic<bool> hides_memory{false};                 // from other devices
  bool refuses_peers = false;                            // a device cannot reach another one's memory
  bool has_no_words = false;                             // streams neither write nor wait for memory
  bool refuses_far_words = false;                        // streams do not write memory of other processes
  bool has_no_dmabufs = false;                           // network devices cannot register its memory
  std::atomic<int> fails_flushes{0};                     // after that many more (0: never)
  std::atomic<bool> refuses_queries{false};              // of events
  std::atomic<int> fails_runs{0};                        // after that many more kernels (0: never)
  std::atomic<int> fails_host_memory{0};                 // likewise, of allocate_host()
  std::atomic<int> throws_in_runs{0};                    // likewise, by an exception
  std::atomic<int> throws_in_queries{0};                 // of events, the next ones
  std::function<tutti::Result<void>(int device)> loads;  // what load_kernels() does first
  // Hardware queues of each device, shared by its streams: work that waits in a queue holds up everything behind it,
  // also in other streams. Urgent streams have as many queues of their own. 0: every stream has its own queue.
  int n_queues = 0;
  std::atomic<bool> gives_up_waiting{false};  // for words, so that a test that has failed ends

  // What was called.
  std::atomic<int> calls{0};  // everything that takes its turn in a stream
  std::atomic<int> runs{0}, programs{0}, lines{0}, spans{0}, factors{0}, word_batches{0}, copies{0}, flushes{0};

  std::atomic<int> allocated{0};      // allocate()
  std::atomic<int> early_frees{0};    // of memory that other processes had mapped
  std::atomic<int> host_frees{0};     // free_host()
  std::atomic<int> stuck_unmaps{0};   // while the device had work that did not end: CUDA waits for that
  std::atomic<int> late_launches{0};  // before load_kernels(): CUDA would load then, which waits for the whole device
  std::atomic<int> strays{0};         // queries of threads without a device: CUDA makes a context on device 0 for them
  size_t allocations();

  // A stream like those of cudaStreamCreate.
  tutti::Result<tutti::cuda::StreamRef> create_blocking_stream();
  // Any other work that takes its turn in a stream, and may be captured.
  tutti::Result<void> enqueue(tutti::cuda::StreamRef stream, std::function<void()> work);
  tutti::Result<bool> has_ended(tutti::cuda::StreamRef stream);
  std::shared_ptr<FakeCapture> capture_of(tutti::cuda::StreamRef stream) { return stream_of(stream).capture; }
  void begin_capture(tutti::cuda::StreamRef stream, FakeGraph* graph);
  // Like CUDA: an error if the capture broke a rule, began in another stream or has unjoined work.
  tutti::Result<void> end_capture(tutti::cuda::StreamRef stream);
  void end_capture(FakeGraph* graph);  // in whatever state it is
  tutti::Result<void> launch(const FakeGraph& graph, tutti::cuda::StreamRef stream);
  // Waits even if a capture does not allow that.
  void finish(tutti::cuda::StreamRef stream);

  tutti::Result<int> device_count() override { return n_devices_; }
  tutti::Result<tutti::cuda::DeviceInfo> describe(int device) override;
  tutti::Result<int> use(int device) override;
  tutti::Result<void*> allocate(size_t bytes) override;
  tutti::Result<void*> allocate_host(size_t bytes) override;
  void free(void* memory) override;
  void free_host(void* memory) override;
  tutti::Result<tutti::cuda::IpcHandle> share(void* memory) override;
  tutti::Result<void*> map(const tutti::cuda::IpcHandle& handle) override;
  void unmap(void* memory) override;
  tutti::Result<tutti::cuda::Allocation> allocation_of(const void* memory) override;
  tutti::Result<tutti::Fd> dmabuf_of(void* memory, size_t bytes) override;
  tutti::Result<void> flush_remote_writes() override;
  tutti::Result<void> reach(int other_device) override;
  tutti::Result<void> load_kernels() override;
  bool is_reachable(const void* memory) override;
  tutti::Result<void> copy(void* to, const void* from, size_t bytes, tutti::cuda::StreamRef stream) override;
  tutti::Result<void> words(const tutti::cuda::WordOperation* operations, int n,
                            tutti::cuda::StreamRef stream) override;
  tutti::Result<void> run(const tutti::cuda::JobList& list, tutti::cuda::StreamRef stream) override;
  tutti::Result<void> run(const tutti::cuda::ProgramCall& call, tutti::cuda::StreamRef stream) override;
  tutti::Result<void> run(const tutti::cuda::LineCall& call, tutti::cuda::StreamRef stream) override;
  tutti::Result<void> run(const tutti::cuda::SpanCall& call, uint32_t n_blocks, tutti::cuda::StreamRef stream) override;
  tutti::Result<void> run(const tutti::cuda::FactorCall& call, uint32_t n_blocks,
                          tutti::cuda::StreamRef stream) override;
  tutti::Result<void> zero(void* memory, size_t bytes, tutti::cuda::StreamRef stream) override;
  tutti::Result<void> record(tutti::cuda::EventRef event, tutti::cuda::StreamRef stream) override;
  tutti::Result<void> wait(tutti::cuda::StreamRef stream, tutti::cuda::EventRef event) override;
  tutti::Result<bool> is_capturing(tutti::cuda::StreamRef stream) override;
  tutti::Result<uint64_t> id_of(tutti::cuda::StreamRef stream, bool) override { return stream_of(stream).id; }
  bool is_per_thread(tutti::cuda::StreamRef stream) override { return stream == kStreamPerThread; }
  tutti::Result<tutti::cuda::StreamRef> create_stream(bool is_urgent = false) override;
  void destroy_stream(tutti::cuda::StreamRef stream) override;
  tutti::Result<tutti::cuda::EventRef> create_event(bool is_timed = false) override;
  void destroy_event(tutti::cuda::EventRef event) override;
  tutti::Result<void> synchronize(tutti::cuda::StreamRef stream) override;
  tutti::Result<bool> reached(tutti::cuda::EventRef event) override;
  tutti::Result<double> seconds_between(tutti::cuda::EventRef from, tutti::cuda::EventRef to) override;

 private:
  struct Block {
    int fd = -1;
    size_t bytes = 0;
    bool is_own = false;
    std::atomic<int>* users = nullptr;  // mappings in other processes; the counter is in shared memory
  };
  FakeStream& stream_of(tutti::cuda::StreamRef stream);
  // CUDA's rules for enqueueing work to a stream, and for queries of it.
  tutti::Result<void> check_use(tutti::cuda::StreamRef stream);
  tutti::Result<void> check_question(tutti::cuda::StreamRef stream);
  bool would_join_legacy(tutti::cuda::StreamRef stream, bool spoils);
  void begin(FakeStream* stream, bool is_urgent);
  // Positions that other streams must reach before the next work of this one.
  using Awaited = std::vector<std::pair<std::shared_ptr<FakeProgress>, uint64_t>>;
  Awaited awaited_by(const FakeStream& stream);
  tutti::Result<void*> enter(int fd, size_t bytes, bool is_own);
  void leave(void* memory);
  bool is_busy();                   // whether this thread's device is
  bool is_far(const void* memory);  // mapped from another process
  void note_launch();
  std::shared_ptr<tutti::Stream> queue_for(bool is_urgent);

  const int n_devices_;
  std::mutex mutex_;
  std::map<void*, Block> blocks_;
  std::set<int> loaded_;                                        // devices that have loaded the kernels
  std::map<int, std::unique_ptr<FakeStream>> default_streams_;  // by device
  std::set<FakeStream*> blocking_streams_;
  std::vector<std::shared_ptr<FakeCapture>> captures_;  // in progress
  std::map<uint64_t, std::unique_ptr<FakeStream>> streams_of_threads_;
  // Handles of destroyed objects are reused, the last one first.
  std::vector<std::unique_ptr<FakeStream>> old_streams_;
  std::vector<std::unique_ptr<FakeEvent>> old_events_;
  std::vector<std::shared_ptr<tutti::Stream>> last_works_;               // of destroyed streams
  std::vector<std::pair<int, std::shared_ptr<FakeProgress>>> progress_;  // of all streams ever created, by device
  struct Queues {
    std::vector<std::shared_ptr<tutti::Stream>> all;
    size_t n_streams = 0;
  };
  std::map<std::pair<int, bool>, Queues> queues_;  // by device and urgency
};

}  // namespace tutti_test
