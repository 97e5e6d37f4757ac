// This header: how far a rank's operations on its GPU are, for who asks why a job hangs. Kernels and streams that wait
// for other ranks say nothing. So these operations have a flight recorder of their own, from the call until the GPU has
// done them, as far as that is looked at; and a rank whose GPU waits finds in the others' recorders who has not called
// yet. All of that is on one host: what goes between hosts is the communicator's own, and told there.
//
// Threading: explain_wait() from any thread; the rest belongs to one at a time.
#pragma once

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

class Progress {
 public:
  // `of_host`: the communicator's recorder.
  Progress(const Recorder& of_host, double limit_seconds);

  void begin(const Operation& operation);
  void end();  // of all that has begun
  bool is_under_way() const { return is_under_way_; }
  // An operation that is in a graph: nothing tells when it is done.
  void note_captured() { has_captured_ = true; }
  bool has_captured() const { return has_captured_; }

  // Now and then while something is under way: logs whom it waits for. kTimeout where that has called nothing for as
  // long as operations may take. `attendee` (may be null) knows how many ranks have called whose recorders cannot be
  // seen from here.
  Result<void> look(const Attendee* attendee);
  void fail(const Error& error) { recorder_.fail(error.message); }

  // One sentence; nothing where the GPU waits for nobody.
  std::optional<std::string> explain_wait() const;

 private:
  Witnesses others() const;
  // Of ranks that have called less than this one, and the least of them.
  uint64_t add_unseen(const Attendee* attendee, const Witnesses& seen, std::vector<Recorder::Awaited>* behind) const;

  const double limit_seconds_;
  Recorder recorder_;
  uint64_t called_ = 0, looked_at_ = 0;
  bool is_under_way_ = false, has_captured_ = false;
  // The ranks that lag behind:
  std::pair<uint64_t, uint64_t> slowest_;  // what they have called, and those that cannot be seen
  int64_t since_ns_ = 0;                   // and since when no more; 0: there are none
  int64_t next_word_ns_ = 0;
};

}  // namespace tutti::cuda
