// exec: carries a schedule out. A Run moves one operation's data through a Program, lane by lane, without blocking;
// drive() runs it to the end and does the waiting.
// Threading: a Program, its links and its Run belong to one thread at a time. A Run allocates nothing except room that
// its program keeps.
#pragma once

#include "base/result.h"
#include "debug/recorder.h"
#include "exec/blockers.h"
#include "exec/combine.h"
#include "exec/yielding.h"
#include "kernels/kernels.h"

namespace tutti {

class Run {
 public:
  enum class Poll { kIdle, kProgress, kDone, kFailed };

  // The first `steps_done` steps of the only lane are done already.
  Run(Program& program, const BoundCall& operation, const Recorder& recorder, size_t steps_done = 0);

  // Does what can be done now. kIdle: every lane waits for a peer.
  Poll advance();
  const Error& error() const { return error_; }
  // The operation that another rank has called differently, if that is the error and ranks may know more of it; or 0.
  uint64_t differs_in() const { return differs_in_; }

  // After a failure: afterwards no rank reads or writes this operation's buffers.
  void revoke();
  // The links that it waits for.
  Blockers blockers() const { return {program_, operation_}; }
  // Whether a message of a different call has arrived on `link` (perhaps one that this operation does not use).
  bool check_stray(Link& link);

 private:
  void go_on(BoundLane& lane);
  void begin(BoundLane& lane);
  bool execute(BoundLane& lane);
  bool deliver(BoundLane& lane);
  bool take_delivery(BoundLane& lane, const BoundStep& step, const LoweredStep& lowered);
  LoweredStep lower(const BoundLane& lane, const BoundStep& step) {
    return lowering_.step(step, rounds_of(lane), lane.round, program_.workspace.places.data());
  }
  bool messages_are_there(const BoundStep& step);
  void post(const BoundLane& lane, const BoundStep& storing, uint32_t ahead);
  void post_ahead(BoundLane& lane);
  bool accept_messages(const BoundStep& step, uint32_t expected_bytes);
  bool fail(Error error) {
    error_ = std::move(error);
    return false;
  }
  void disagree(const Call& mine, int peer, const Call& theirs);
  bool acquire(const BoundLane& lane, const LoweredStep& step, Targets* targets) const;
  bool compute(const LoweredStep& step, const Targets& targets);
  bool read_messages(const LoweredStep& step, bool* any_exposed);
  void send(const BoundStep& step, uint32_t bytes, const void* exposed);
  const TagWords& tag_of(const BoundStep& step) const {
    return operation_.tags.empty() ? tag_ : operation_.tags[step.size.block];
  }
  uint64_t rounds_of(const BoundLane& lane) const;

  Program& program_;
  const BoundCall& operation_;
  const Recorder& recorder_;
  TagWords tag_;
  Lowering lowering_;
  Combiner combiner_;
  uint64_t rounds_;
  size_t lanes_left_;
  Error error_;
  uint64_t differs_in_ = 0;
};

// The case of one lane without rounds, exposed memory and scaling: what does not change between operations with equal
// arguments is lowered beforehand, because a Run's generality would cost more than the bytes. Same schedule, same
// messages. It does as many steps as it can without waiting long, and leaves the rest, and error messages, to a Run.
class SmallRun {
 public:
  // For operations like `what` by `program`, until the next prepare(). Allocates only if no earlier operation had as
  // many steps.
  void prepare(Program& program, const BoundCall& what);
  void clear() {
    steps_.clear();
    done_ = 0;
    exposes_ = false;
  }
  // False if it is not of this kind: too large, or not done by a single lane in one round.
  explicit operator bool() const { return !steps_.empty(); }

  // How often to look for the peers' messages, and how to let others have the CPU in between.
  struct Turns {
    int left;
    Yielding* yields;  // null: spins
  };
  // Runs operation number `sequence`. True if it is complete; else a Run has to do the rest, after steps_done().
  bool advance(uint64_t sequence, const void* input, void* output, Turns turns);
  size_t steps_done() const { return done_; }

 private:
  char* address(const Place& place) const { return bases_[place.base] + place.offset_bytes; }
  char* slot_unless_exposed(const LoweredStep& step);
  char* slot_for(const LoweredStep& step);
  int push(const LoweredStep& step);
  int carry_out(LoweredStep& step, Turns* turns);
  bool take_messages(const LoweredStep& step, Turns* turns);
  const void* wait_for(Link& link, uint32_t bytes, Turns* turns);
  void compute(LoweredStep& step, char* slot);

  Program* program_ = nullptr;
  std::vector<LoweredStep> steps_;
  std::vector<Place> sources_;
  char** bases_ = nullptr;  // the program's
  tuttiTag tag_{};
  ReduceKernel reduce_ = nullptr;
  size_t done_ = 0;
  bool exposes_ = false;  // such an operation has exposed, or a peer, so the next ones begin with a Run
};

}  // namespace tutti
