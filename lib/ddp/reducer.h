// The averager behind a tuttiDdp_t.
//
// A step goes from begin to wait. In between gradients are marked, by any threads; whoever marks the last one of a
// bucket that is next in order hands it to the stream, whose thread runs the hook. So operations run one after the
// other in the order of buckets, whatever the order of marks. wait launches what is left, waits for the stream, and
// lets all ranks agree on how the step went.
//
// Threads: mark, gradient and stats from any thread; the others one at a time. `mutex_` guards what marks touch. The
// stream's thread has its own members, which the others touch only while nothing is queued.
//
// Gradients on a GPU go the same way, but what the thread does there is to put a bucket's work into the device's own
// queue (device.h), and wait waits until that is done, not for the work.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "agree.h"
#include "buckets.h"
#include "device.h"
#include "hook.h"
#include "tensor.h"

namespace tutti::ddp {

class Reducer {
 public:
  enum class Mark : uint8_t { kNone, kReady, kUnused };

  // `twin`: what the group's communicator is, if not the user's.
  Reducer(HostTwin twin, const Group& group, Devices devices, const tuttiDdpConfig_t& config,
          std::vector<Tensor> params, std::vector<Tensor> buffers);
  ~Reducer();
  Status prepare();            // memory and the stream; once, before all else
  Status synchronize() const;  // waits for what goes on in GPUs
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
  enum class Phase { kIdle, kAccumulating, kForward, kReducing };  // the last from the first mark on

  Status need_idle(const char* what) const;
  Status broadcast_all(const std::vector<Tensor>& tensors, int root, Queue queue = Queue::kCaller);

  // Of begin and join, which is a follower's begin.
  Status meet(bool* anybody);
  Status open_step();
  Status rebuild();
  Status build_buckets(const std::vector<size_t>& order);
  Device& device_of(const Tensor& tensor) const { return devices_.of(tensor.device); }

  // With the mutex held.
  Status check_graph(size_t index, Mark kind) const;
  Status check_mark(size_t index, Mark kind) const;
  void set_mark(size_t index, Mark kind);
  Status fill_slot(size_t index, Mark kind);
  void launch_due();
  void settle_unmarked();
  void note(const Status& status);          // the step's outcome is the first error
  void note_all(Status (Device::*does)());  // of all devices

  // On the stream's thread.
  static void run_on_stream(tuttiStream_t stream, tuttiResult_t status, void* reducer);
  void run_next_bucket();
  Status look_for_non_finite(const Layout& layout, Device& device);

  // Of wait.
  Status close_step();
  Status finish_step();
  bool tracks_use() const;
  bool checks_this_step() const;
  Status find_non_finite();
  Status take_back(const std::vector<int32_t>& used);
  Status compare_ranks() const;

  const HostTwin twin_;
  const Group group_;
  const Devices devices_;  // outlives whose memory is there
  const tuttiDdpConfig_t config_;
  const std::vector<Tensor> params_, buffers_;
  std::unique_ptr<Hook> hook_;
  Buckets buckets_;
  tuttiStream_t stream_ = nullptr;
  int leader_ = 0;  // whose buffers and order count
  int no_sync_depth_ = 0;
  bool order_due_ = true;  // the ready order of a step is still to be taken
  bool rebuild_due_ = false;

  mutable std::mutex mutex_;  // and while buckets_ is replaced
  Phase phase_ = Phase::kIdle;
  bool waiting_ = false;  // in wait: everything may be launched, and nothing marked any more
  std::vector<Mark> marks_;
  std::vector<bool> used_before_;  // in steps without synchronisation
  std::vector<size_t> pending_;    // of each bucket, gradients
  std::vector<size_t> order_;      // in which gradients were marked
  size_t next_bucket_ = 0;
  Status outcome_;
  tuttiDdpStats_t stats_ = TUTTI_DDP_STATS_INITIALIZER;

  bool following_ = false;  // in join

  // A static graph: this rank's, once it has taken a step of its own, and what all ranks together use. A rank that
  // joined before its first step learns its graph later than the others.
  bool graph_known_ = false;
  bool learning_ = false;  // some rank does in this step
  std::vector<bool> never_used_;
  std::vector<int32_t> used_somewhere_;

  // The stream thread's, of this step.
  size_t running_ = 0;
  size_t reduced_bytes_ = 0;
  std::vector<uint64_t> non_finite_;  // of each parameter, in the order of buckets: its first such element
  size_t looked_at_ = 0;              // parameters of the step's buckets until now
};

}  // namespace tutti::ddp
