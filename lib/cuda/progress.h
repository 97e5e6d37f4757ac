// This header: how far a rank's operations on its GPU have come, to diagnose why a job hangs. Kernels and streams that
// wait for other ranks report nothing, so these operations have a flight recorder of their own, from the call until the
// GPU is seen to have done them. A rank whose GPU waits looks in the other ranks' recorders for those that have not
// called yet. All of that is within one host: traffic between hosts is the host communicator's, which reports it.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cuda/meeting.h"
#include "debug/recorder.h"
#include "debug/why.h"
#include "exec/operation.h"

namespace tutti::cuda {

class Host;

class Progress {
 public:
  explicit Progress(Host& host);

  void begin(const Operation& operation);
  void end();  // all operations that have begun
  // An operation is in a graph: its completion cannot be observed.
  void note_captured() { has_captured_ = true; }
  bool has_captured() const { return has_captured_; }

  // To be called now and then: if something is under way, logs which ranks it waits for. kTimeout if these have
  // called nothing for as long as an operation may take, kRemoteError once one of them has left. `attendee` (may be
  // null) knows how much the ranks have called, also those whose recorders cannot be seen from here.
  Result<void> look(const Attendee* attendee);
  void fail(const Error& error) { recorder_.fail(error.message); }

  // One sentence; none where the GPU waits for nobody.
  std::optional<std::string> explain_wait() const;

 private:
  void end_locked();
  Witnesses others() const;
  // Adds to `behind` the ranks not `seen` that have called less than this one. Returns the fewest calls of any of them.
  uint64_t add_unseen(const Attendee* attendee, const Witnesses& seen, std::vector<int>* behind) const;
  Result<void> check_stays(const Attendee* attendee, int rank) const;

  Host& host_;
  const double limit_seconds_;
  Recorder recorder_{true};
  std::atomic<bool> has_captured_{false};
  mutable std::mutex mutex_;  // guards all below
  uint64_t called_ = 0, looked_at_ = 0;
  bool is_under_way_ = false;
  // The ranks that lag behind:
  std::pair<uint64_t, uint64_t> slowest_;  // fewest calls, of those whose recorders are seen and of the others
  int64_t since_ns_ = 0;                   // since when that is unchanged; 0: not looked at yet
  int64_t next_word_ns_ = 0;
};

}  // namespace tutti::cuda
