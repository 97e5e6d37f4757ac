// This header: collectives, from the call to the executor: the plan, the program, and the cache of what was worked out
// for calls that repeat. Belongs to the thread whose turn it is.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "comm/link_pool.h"
#include "comm/membership.h"
#include "comm/monitor.h"
#include "exec/buffers.h"
#include "exec/operation.h"
#include "exec/run.h"
#include "exec/wait.h"

namespace tutti {

// What was worked out for an operation, kept in case the same call is repeated, as in a loop.
struct alignas(64) CachedOperation {
  CallKey key;
  bool repeats = false;  // whether equal operations may use this entry
  Program* program = nullptr;
  Call call;
  TagWords recorded;  // the call as the recorder takes it
  Buffers buffers;
  SmallRun small;
  bool is_for(const CallKey& other) const { return repeats && key == other; }
};

class Collectives {
 public:
  // Their links are made at the start, so that ranks can always agree.
  static constexpr Algo kFirst[] = {Algo::kTree, Algo::kRing};

  Collectives(const Membership& me, Monitor& monitor, LinkPool& links) : me_(me), monitor_(monitor), links_(links) {}

  Result<void> connect(Deadline deadline, const std::function<bool()>& gives_up);
  Result<void> run(const Operation& operation);
  // See Communicator::repeat().
  using Repeated = const Error*;
  static const Error kNotRepeated;
  [[gnu::always_inline]] inline Repeated repeat(const CallKey& key, const void* input, void* output,
                                                const void* caller) noexcept;
  // Checks that all ranks are in this call: over the existing links, before any rank waits for a missing one.
  Result<void> agree(const Call& call);
  void forget_operations() {
    for (CachedOperation& cached : cache_) cached.repeats = false;
  }

  // What the planner takes for the operation's size; of unequal blocks, the mean.
  uint64_t planned_bytes(const Operation& operation) const;
  // Which algorithm and links such an operation would use now, and why.
  std::string explain(const Call& call) const;
  size_t scratch_bytes() const { return scratch_bytes_; }  // any thread

 private:
  using ProgramKey = std::tuple<Collective, Algo, uint32_t, int>;  // collective, algorithm, lanes, root
  static constexpr ProgramKey key_of(Algo algo) { return {Collective::kAllReduce, algo, 1, 0}; }

  // Each key maps to exactly one entry.
  CachedOperation& place_of(const CallKey& key) { return cache_[key.hash() % cache_.size()]; }
  void begin(CachedOperation& cached, const void* caller, uint64_t created) {
    monitor_.recorder().begin(cached.recorded, ++monitor_.begun().sequence, caller, created);
  }
  [[gnu::noinline]] Repeated finish(CachedOperation& cached, const void* input, void* output) noexcept;
  // Kept out of run(), so that its fast path saves no registers and checks nothing on behalf of this one.
  [[gnu::noinline]] Result<void> work_out(const Operation& operation);
  Result<void> drive_program(Program& program, const Call& call, const Operation& operation, size_t steps_done = 0);
  Result<Program*> find_program(const Call& call, uint64_t bytes);
  // Its links may be missing still.
  Program& add_program(const ProgramKey& key);
  SmallRun::Turns turns() {
    Yielding& yielding = links_.yielding();
    return yielding.begin_operation() ? SmallRun::Turns{kYields, &yielding} : SmallRun::Turns{kSpins, nullptr};
  }

  const Membership& me_;
  Monitor& monitor_;
  LinkPool& links_;
  std::map<ProgramKey, Program> programs_;
  std::array<CachedOperation, 64> cache_;
  Error repeat_failure_;
  std::atomic<size_t> scratch_bytes_{0};  // total of programs_
};

inline Collectives::Repeated Collectives::repeat(const CallKey& key, const void* input, void* output,
                                                 const void* caller) noexcept {
  CachedOperation& cached = place_of(key);
  if (!cached.is_for(key) || !cached.small || !cached.buffers.fit(input, output) || monitor_.failed())
    return &kNotRepeated;
  begin(cached, caller, 0);
  if (!cached.small.advance(monitor_.begun().sequence, input, output, turns())) return finish(cached, input, output);
  monitor_.recorder().end();
  return nullptr;
}

// Sums of 16- and 8-bit floats that take several steps (wide_sums.cpp): calls drive(piece) for one piece after another,
// each the same operation on floats. The operation has at least one element. Stops at the first error.
Result<void> in_wide_pieces(const BoundCall& what, const std::function<Result<void>(const BoundCall&)>& drive);

}  // namespace tutti
