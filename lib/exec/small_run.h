// A small operation without a Run's generality, which would cost more than its bytes. Same schedule, same messages:
// what does not change between operations with equal arguments is worked out beforehand. It does as many steps as it
// can without waiting, and leaves the rest, and error messages, to a Run.
#pragma once

#include "exec/run.h"

namespace tutti {

class SmallRun {
 public:
  // For operations like `call` by `program`, until the next prepare(). Takes memory only if no operation before had as
  // many steps.
  void prepare(Program& program, const Call& call, int n_ranks);
  void clear() {
    steps_.clear();
    done_ = 0;
  }
  // False for those that are not of this kind: large ones, and all that a single lane does not do in one round.
  explicit operator bool() const { return !steps_.empty(); }

  // How often to look for the peers' messages, and whether others need the CPU in between.
  struct Turns {
    int left;
    bool yields;
  };
  // The operation with this number. True if it is complete; else a Run is to skip the steps_done().
  bool advance(uint64_t sequence, const void* input, void* output, Turns turns);
  size_t steps_done() const { return done_; }

 private:
  char* address(const Place& place) const { return bases_[place.base] + place.offset_bytes; }
  int carry_out(LoweredStep& step, Turns* turns);
  bool take_messages(const LoweredStep& step, Turns* turns);
  void compute(LoweredStep& step, char* slot);
  bool all_sent() const;

  Program* program_ = nullptr;
  std::vector<LoweredStep> steps_;
  std::vector<Place> sources_;
  char** bases_ = nullptr;  // the program's
  tuttiTag tag_{};
  ReduceKernel reduce_ = nullptr;
  size_t done_ = 0;
};

}  // namespace tutti
