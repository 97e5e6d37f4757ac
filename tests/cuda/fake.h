// A CUDA runtime on host memory: devices, streams that are threads, events, graphs, memory that other processes can
// map. Kernels are their twins on the CPU, or the PTX of the GPU's (ptx/). It is stricter than the real one where
// mistakes would go unseen. May go wrong on purpose.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
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

// What carries kernels out: here their twins on the CPU, each when it is called.
class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual bool are_interpreted() const { return false; }
  // Whether so many blocks that wait for each other run at the same time.
  virtual bool hold(uint32_t /*n_blocks*/) const { return true; }
  // Memory that kernels will use, and will use no more.
  virtual void know(void*, size_t) {}
  virtual void forget(void*) {}
  virtual void run(const tutti::cuda::JobList& list);
  virtual void run(const tutti::cuda::ProgramCall& call);
  virtual void run(const tutti::cuda::LineCall& call);
  virtual void run(const tutti::cuda::SpanCall& call, uint32_t n_blocks);
  virtual void run(const tutti::cuda::FactorCall& call, uint32_t n_blocks);
};
// Of this program: the twins, unless it says otherwise (nullptr takes them back).
Kernels& kernels();
void use_kernels(Kernels* kernels);
// Tests leave out what is much like the rest.
inline bool is_slow() {
  return kSanitized || kernels().are_interpreted();
}

// How much of what a stream was given is done.
struct FakeProgress {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t given = 0, done = 0;
};

// What of a capture comes before a point of it, by the number of the work.
using FakePast = std::set<size_t>;

struct FakeStream {
  std::shared_ptr<tutti::Stream> queue;
  std::shared_ptr<FakeProgress> progress;
  uint64_t id = 0;
  int device = 0;
  std::shared_ptr<FakeCapture> capture;
  FakePast past;
  bool is_blocking = false;  // waits for the default stream of the device, which waits for it
};

struct FakeEvent {
  std::shared_ptr<tutti::Event> event = std::make_shared<tutti::Event>();
  std::atomic<int64_t> reached_ns{0};
  mutable std::mutex mutex;  // what follows: of ranks that share it one may record while others ask
  std::shared_ptr<FakeCapture> captured_in;
  FakePast past;
};

// The handle that means a stream of its own in every thread, as CUDA's does.
inline const tutti::cuda::StreamRef kStreamPerThread = reinterpret_cast<void*>(uintptr_t{2});

// What was captured, in an order that keeps that of every stream.
struct FakeGraph {
  std::vector<std::function<void()>> works;
};

// A capture that is under way, or over.
struct FakeCapture {
  FakeGraph* graph = nullptr;
  std::vector<FakeStream*> streams;  // the one that it began in, then those that have joined
  std::atomic<bool> is_spoilt{false}, is_over{false};
};

// With CUDA's number for it; cudaErrorInvalidValue where nothing better is known.
tutti::Error refuse(const std::string& message, int code = 1);
int last_refusal();  // of this thread
bool has_device();   // this thread has chosen one

class FakePort final : public tutti::cuda::Port {
 public:
  explicit FakePort(int n_devices) : n_devices_(n_devices) { tutti::cuda::set_port(this); }
  ~FakePort() override { tutti::cuda::set_port(nullptr); }

  // What may go wrong.
  bool refuses_maps = false;                 // IPC handles cannot be opened
  bool corrupts_maps = false;                // what is written to mapped memory does not arrive
  std::atomic<bool> hides_memory{false};     // from other devices
  bool has_no_words = false;                 // streams cannot wait for memory
  bool has_no_dmabufs = false;               // network devices cannot know its memory
  std::atomic<int> fails_flushes{0};         // so many more, then they are refused (0: none is)
  std::atomic<bool> refuses_queries{false};  // of events
  std::atomic<int> fails_runs{0};            // so many kernels more, then they are refused (0: none is)
  // Hardware queues of each device, which its streams share: what waits in one holds up all that comes after it, also
  // of other streams. As many more are for urgent streams. 0: every stream has one of its own.
  int n_queues = 0;
  std::atomic<bool> gives_up_waiting{false};  // for words, so that a test which has failed ends

  // What was done.
  std::atomic<int> calls{0};  // of all that takes its turn in a stream
  std::atomic<int> runs{0}, programs{0}, lines{0}, spans{0}, factors{0}, word_batches{0}, copies{0}, flushes{0};

  std::atomic<int> allocated{0};      // allocate()
  std::atomic<int> early_frees{0};    // of memory that other processes had mapped
  std::atomic<int> host_frees{0};     // free_host()
  std::atomic<int> stuck_unmaps{0};   // those for which the device had work that did not end: CUDA waits for that
  std::atomic<int> late_launches{0};  // before load_kernels(): CUDA loads then, which waits for the whole device
  std::atomic<int> strays{0};         // questions of threads that have no device: CUDA makes a context on device 0
  size_t allocations();

  // A stream as cudaStreamCreate makes them.
  tutti::Result<tutti::cuda::StreamRef> create_blocking_stream();
  // Anything else that takes its turn in a stream, and may be captured.
  tutti::Result<void> enqueue(tutti::cuda::StreamRef stream, std::function<void()> work);
  tutti::Result<bool> has_ended(tutti::cuda::StreamRef stream);
  std::shared_ptr<FakeCapture> capture_of(tutti::cuda::StreamRef stream) { return stream_of(stream).capture; }
  void begin_capture(tutti::cuda::StreamRef stream, FakeGraph* graph);
  // As CUDA: an error if the capture broke a rule, began in another stream or has lost sight of some work.
  tutti::Result<void> end_capture(tutti::cuda::StreamRef stream);
  void end_capture(FakeGraph* graph);  // whatever has become of it
  tutti::Result<void> launch(const FakeGraph& graph, tutti::cuda::StreamRef stream);
  // Whether captures know of it or not.
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
    std::atomic<int>* users = nullptr;  // mappings in other processes; in memory that comes along
  };
  FakeStream& stream_of(tutti::cuda::StreamRef stream);
  // CUDA's rules for what is put into a stream, and for questions about it.
  tutti::Result<void> check_use(tutti::cuda::StreamRef stream);
  tutti::Result<void> check_question(tutti::cuda::StreamRef stream);
  bool would_join_legacy(tutti::cuda::StreamRef stream, bool spoils);
  void begin(FakeStream* stream, bool is_urgent);
  // How far other streams have to be before what this one is given now.
  using Awaited = std::vector<std::pair<std::shared_ptr<FakeProgress>, uint64_t>>;
  Awaited awaited_by(const FakeStream& stream);
  tutti::Result<void*> enter(int fd, size_t bytes, bool is_own);
  void leave(void* memory);
  bool is_busy();  // the device of this thread
  void note_launch();
  std::shared_ptr<tutti::Stream> queue_for(bool is_urgent);

  const int n_devices_;
  std::mutex mutex_;
  std::map<void*, Block> blocks_;
  std::set<int> loaded_;                                        // devices that have the kernels
  std::map<int, std::unique_ptr<FakeStream>> default_streams_;  // by device
  std::set<FakeStream*> blocking_streams_;
  std::vector<std::shared_ptr<FakeCapture>> captures_;  // under way
  std::map<uint64_t, std::unique_ptr<FakeStream>> streams_of_threads_;
  // Handles that were destroyed are given out again, the last one first.
  std::vector<std::unique_ptr<FakeStream>> old_streams_;
  std::vector<std::unique_ptr<FakeEvent>> old_events_;
  std::vector<std::shared_ptr<tutti::Stream>> last_works_;               // of streams that were destroyed
  std::vector<std::pair<int, std::shared_ptr<FakeProgress>>> progress_;  // of all streams that there were, by device
  struct Queues {
    std::vector<std::shared_ptr<tutti::Stream>> all;
    size_t n_streams = 0;
  };
  std::map<std::pair<int, bool>, Queues> queues_;  // by device and whether they are for urgent streams
};

}  // namespace tutti_test
