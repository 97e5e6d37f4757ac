// This header: what a rank knows about its own operations and the others': its flight recorder, what it asks and tells
// over the control connections, and how the group ends. Destroyed before what it watches.
// Threading: begun() and recording belong to the thread of the operations; the rest from any thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/comparison.h"
#include "comm/inquiry.h"
#include "comm/link_pool.h"
#include "comm/membership.h"
#include "comm/metrics.h"
#include "comm/remote_attendants.h"
#include "debug/lateness.h"
#include "debug/recorder.h"
#include "exec/run.h"
#include "group/peers.h"

namespace tutti {

// How many operations and messages a rank has begun. Belongs to the thread of its operations.
struct Begun {
  uint64_t sequence = 0;                    // collectives: the number of the last one
  uint64_t exchanges = 0;                   // operations of point-to-point messages
  std::map<int, Standing::Count> messages;  // such messages, by peer
  Deadline limit = Deadline::never();       // of a creation, to which some operations belong if it is on a GPU

  // What the other ranks are told of it.
  Standing standing(int rank, Standing::Doing doing, const Recorder& recorder) const {
    Standing s;
    s.rank = rank;
    s.doing = doing;
    s.call = recorder.memory().find(sequence);
    s.call.sequence = sequence;  // after very many messages the recorder has lost the call itself
    s.place = doing == Standing::Doing::kPasses ? recorder.memory().last_place_text()
                                                : recorder.memory().place_text(sequence);
    s.begun = sequence + exchanges;
    s.counts = messages;
    return s;
  }
};

class Monitor {
 public:
  explicit Monitor(const Membership& me)
      : me_(me), comparison_(me.rank, me.n_ranks, recorder_), inquiry_(me.rank, me.n_ranks, recorder_) {}
  ~Monitor();

  // During set-up, in this order: when all locations are known; to connect the neighbours; when all ranks are
  // connected, before the first operation.
  void take_place();
  Result<void> connect(PeerWatch::Config config, std::vector<Fd> listening, Deadline deadline,
                       const std::function<bool()>& gives_up);
  void start_metrics(const LinkPool& links);

  Begun& begun() { return begun_; }
  Recorder& recorder() { return recorder_; }
  Comparison& comparison() { return comparison_; }
  Inquiry& inquiry() { return inquiry_; }
  PeerWatch& watch() const { return *watch_; }

  bool failed() const { return watch_->ending().failed(); }
  Result<void> async_error() const;
  // The same, but it may wait: a broken connection is often the echo of another failure, of which the control
  // connections are about to tell.
  static constexpr int kGraceMs = 1000;  // with 300 ms, beside six compilers, the echo was told instead
  Result<void> failure_soon(int grace_ms = kGraceMs) const;
  void abort(const char* function);
  // An error if nothing can be run any more.
  Result<void> check_alive();
  // Ends the group because an operation failed. Returns the error that the group has ended with.
  Error end_with(Error error);
  // If another rank has called something else, asks for what messages do not tell, before the group ends.
  Result<void> has_driven(const Run& run, Result<void> result);
  // Says goodbye, after finalize or before destruction: a process that exits after this does not count as lost.
  void leave();

  // Begins this rank's next collective, which is from now on compared with what the others call.
  Call begin(const Operation& operation, Algo algo);
  // One sentence on which rank this rank waits for.
  std::string explain_wait() const;
  // Of a rank, in the operations that the recorders hold. Asks the other hosts, if there are any.
  StragglerDetector::Rank lateness(int rank);

 private:
  void keep_trace(const Error& reason);
  Error root_cause(Error error) const;
  Error with_places(Error error) const;
  std::optional<PeerWatch::Answer> hear(std::string_view question);

  const Membership& me_;
  Recorder recorder_;
  Comparison comparison_;
  Inquiry inquiry_;
  std::optional<RemoteAttendants> remote_attendants_;  // set once all locations are known
  std::unique_ptr<PeerWatch> watch_;
  Begun begun_;
  std::unique_ptr<Metrics> metrics_;  // null if not wanted
};

// Carries out an operation, from begin to end. An exception, usually for lack of memory, breaks the communicator as an
// error does: other ranks may already wait in the operation.
template <class Body>
Result<void> carry_out(Monitor& monitor, Body&& body) noexcept {
  auto result = contained(body);
  if (!result) return contained([&]() -> Result<void> { return monitor.end_with(std::move(result).error()); });
  monitor.recorder().end(true);
  return result;
}

// Writes what this rank did last; what all ranks of this process did.
Result<void> dump_trace(const Recorder& recorder, const std::string& path);
Result<void> dump_traces(const std::string& path);

}  // namespace tutti
