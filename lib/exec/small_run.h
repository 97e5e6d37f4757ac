// A small operation without a Run's generality, which would cost more than its bytes. Same schedule, same messages: all
// that does not change from one operation to its like is worked out before, and it does as many of the steps as can be
// done at once and leaves the rest, and the words for what is wrong, to a Run.
#pragma once

#include "exec/run.h"

namespace tutti {

class SmallRun {
 public:
  static constexpr uint64_t kMostBytes = 64 << 10;  // of a block: beyond, a Run's generality is a few per cent

  // For operations like `call` by `program`, until the next prepare(). Takes memory only if no operation before had as
  // many steps.
  void prepare(Program& program, const Call& call, int n_ranks);
  void clear() { steps_.clear(); }
  // False for those that are not of this kind: large ones, and all that a single lane does not do in one round.
  explicit operator bool() const { return !steps_.empty(); }

  // The operation with this number. Looks `turns` times for the peers' messages. True if it is complete; else a Run is
  // to skip the steps_done().
  bool advance(uint64_t sequence, const void* input, void* output, int turns);
  size_t steps_done() const { return done_; }

 private:
  struct Place {
    Buffer buffer;
    int message;  // its number if the place is a message, else -1
    uint64_t offset_bytes;
  };
  struct SmallStep {
    Link* const* recvs;
    Link* send;
    uint32_t n_recvs, n_sources;
    const Place* sources;
    Place store;
    uint32_t bytes, elems, divisor;
  };
  char* in_buffer(const Place& place) const { return bases_[static_cast<int>(place.buffer)] + place.offset_bytes; }
  const void* address(const Place& place) const {
    if (place.message >= 0) return program_->messages[static_cast<size_t>(place.message)].data;
    return in_buffer(place);
  }
  bool take_messages(const SmallStep& step, int* turns);
  void compute(const SmallStep& step, char* slot);
  bool all_sent() const;

  Program* program_ = nullptr;
  std::vector<SmallStep> steps_;
  std::vector<Place> sources_;
  TagWords tag_{};
  ReduceKernel reduce_ = nullptr;
  char* bases_[4] = {};  // of each Buffer
  size_t done_ = 0;
};

}  // namespace tutti
