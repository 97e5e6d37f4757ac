// This header: one rank's communicator on a GPU, on top of its communicator on the host, which finds the others,
// notices their loss and carries what cannot go from GPU to GPU.
//
// Threading: submit() and advance() from any thread; a submission is in the order of calls. drain() and settle() wait.
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

  // Gives the operation its turn; advance() puts it into its stream. True when all that was submitted is there; false
  // where other ranks of this process have to come first: theirs may be this thread's.
  Result<void> submit(const Operation& operation, StreamRef stream);
  Result<bool> advance();
  // Advances all until nothing is left.
  static Result<void> settle(const std::vector<Device*>& devices);
  // Waits until the GPU has done all that was submitted, or until the communicator is broken.
  void drain();

  std::string explain(const Operation& operation) const { return ways_->explain(operation); }
  // One sentence on which rank the GPU waits for, if it does. From any thread, at any time.
  std::optional<std::string> explain_wait() const { return progress_.explain_wait(); }

  // Of memory that the user has registered; 0: operations gain nothing by it.
  uint64_t open_window(const void* memory, size_t bytes);
  void close_window(uint64_t window);

 private:
  Device(Host& host, Port& port, int device)
      : host_(host), port_(port), device_(device), progress_(host.recorder(), host.operation_limit_seconds()) {}
  Result<void> setup();
  struct Pending {
    Operation operation;
    Turn turn;
    Way* way = nullptr;
    std::thread::id only_by;  // in whose calls alone the stream means the caller's; none: in all threads'
    bool has_begun = false, is_told = false;
  };
  Result<bool> enqueue_all();
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
  std::mutex mutex_;  // all that follows
  std::unique_ptr<Ways> ways_;
  EventRef own_end_ = nullptr, end_ = nullptr;  // of what was submitted last: this one's or a way's; null before
  uint64_t end_stream_ = 0;                     // its id
  std::deque<Pending> pending_;
  Progress progress_;
  Fd stop_fd_;
  std::thread guard_;  // tells whom the GPU waits for, and frees what waits when the group breaks
};

}  // namespace tutti::cuda
