// This header: one rank's communicator on a GPU, on top of its communicator on the host, which finds the other ranks,
// notices their loss and carries what cannot go from GPU to GPU.
//
// Threading: submit() and advance() from any thread; submissions keep the order of calls. drain() and settle() wait.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "cuda/port.h"
#include "cuda/progress.h"
#include "cuda/ways.h"
#include "exec/operation.h"

namespace tutti::cuda {

class Device {
 public:
  // Collective. kInvalidUsage and kCudaError name the device and say what is wrong with it.
  static Result<std::unique_ptr<Device>> create(Host& host, int device);
  ~Device();

  // submit() queues the operation; advance() enqueues it in its stream. True when all that was submitted is enqueued;
  // false where other ranks of this process have to call first, possibly from this same thread.
  Result<void> submit(const Operation& operation, StreamRef stream);
  Result<bool> advance();
  // Tells ranks whose GPUs may wait for this one what all ranks' hosts call next, as an operation in its order.
  void announce(const Operation& operation);
  // Advances all until nothing is left.
  static Result<void> settle(const std::vector<Device*>& devices);
  // Waits until the GPU has done all that was submitted, or until the communicator is broken.
  void drain();

  std::string explain(const Operation& operation) const { return ways_->explain(operation); }
  // One sentence on which rank the GPU waits for, if any. From any thread, at any time.
  std::optional<std::string> explain_wait() const { return progress_.explain_wait(); }

  // A window for memory that the user has registered; 0 if it brings operations no benefit.
  uint64_t open_window(const void* memory, size_t bytes);
  void close_window(uint64_t window);

 private:
  Device(Host& host, Port& port, int device) : host_(host), port_(port), device_(device), progress_(host) {}
  Result<void> setup();
  struct Pending {
    Operation operation;
    Turn turn = {};
    Way* way = nullptr;       // null: it is announced, nothing more
    std::thread::id only_by;  // the only thread in which the handle means this stream; none: in all threads
    bool has_begun = false, is_told = false;
    bool is_of_this_thread() const { return only_by == std::thread::id() || only_by == std::this_thread::get_id(); }
  };
  Result<bool> enqueue_all();
  bool drop_pending();
  Result<void> begin(Pending& pending);
  Result<bool> enqueue(Pending& pending);
  Result<void> mark_end(EventRef ways_end, const Turn& turn);
  Result<bool> is_done();
  Result<bool> has_reached_end();
  void guard();
  void look_around();
  Board* board() const;  // null where all ranks are in one process, or have none

  Host& host_;
  Port& port_;
  const int device_;
  std::mutex mutex_;  // guards all members below
  std::unique_ptr<Ways> ways_;
  EventRef own_end_ = nullptr;
  struct End {
    EventRef event = nullptr;  // after what was submitted last, own_end_ or a way's; null once that was seen to be done
    uint64_t stream_id = 0;
  };
  End end_;
  std::deque<Pending> pending_;
  bool has_dropped_ = false;  // pending operations, because the communicator broke
  Progress progress_;
  Fd stop_fd_;
  std::thread guard_;  // tells which ranks the GPU waits for; ends the waits when the group breaks
};

}  // namespace tutti::cuda
