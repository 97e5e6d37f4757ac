// The averager behind a tuttiDdp_t.
//
// A step goes from begin to wait. In between, gradients are marked, by any thread; the thread that marks the last
// gradient of the next bucket in order hands the bucket to the stream (hook_stream.h), whose thread runs the hook. So
// operations run one after the other in bucket order, whatever the order of marks. wait launches the remaining buckets,
// waits for the stream, and lets all ranks agree on the outcome of the step.
//
// Threads: mark, gradient and stats from any thread; the others one at a time. `mutex_` guards what marks touch.
//
// Gradients on a GPU take the same path, but the stream's thread only puts a bucket's work into the device's own queue
// (device.h), and wait waits until that is done, not for the work itself.
#pragma once

#include <mutex>
#include <vector>

#include "hook_stream.h"

namespace tutti::ddp {

class Reducer {
 public:
  explicit Reducer(Replica replica);
  // Once, before any other call: allocates memory, creates the stream, broadcasts rank 0's parameters and buffers.
  Status prepare();
  Status set_stream(tuttiStream_t stream);

  Status broadcast(int root, Queue queue = Queue::kCaller);
  Status broadcast_buffers(int root);
  Status gradient(size_t index, void** grad) const;
  Status zero_gradients();

  Status begin();
  Status mark(size_t index, Mark kind);
  Status wait();
  Status join();
  Status enter_no_sync();
  Status leave_no_sync();

  tuttiDdpStats_t stats();

 private:
  // kReducing: from the first mark on; kWaiting: in wait, once no more marks are accepted.
  enum class Phase { kIdle, kAccumulating, kForward, kReducing, kWaiting };

  Status need_idle(const char* what) const;

  // Parts of begin and join, which is a follower's begin.
  Status open_step();
  Status rebuild();
  Status build_buckets(const std::vector<size_t>& order);  // collective

  // With the mutex held.
  Status check_mark(size_t index, Mark kind) const;
  void set_mark(size_t index, Mark kind);
  void settle_unmarked();
  void note_all(Status (Device::*does)());  // on all devices

  // Parts of wait.
  Status close_step();
  Status check_communicators();
  Status finish_step();

  const Replica replica_;
  Attendance present_;
  int no_sync_depth_ = 0;

  mutable std::mutex mutex_;  // also held while buckets_ is replaced
  Phase phase_ = Phase::kIdle;
  Buckets buckets_;
  Graph graph_;
  Marks marks_;
  tuttiDdpStats_t stats_ = TUTTI_DDP_STATS_INITIALIZER;

  Outcome outcome_;  // of the present step
  Checks checks_;
  HookStream hooks_;  // last, so destroyed before the members that it uses
};

}  // namespace tutti::ddp
