// This header: collectives, from the call to the executor: what each is planned as, its program, and what was worked
// out for those that repeat. Belongs to the thread whose turn it is.
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

// What was worked out for operations that may come again, as in loops.
struct alignas(64) CachedOperation {
  CallKey key;
  bool repeats = false;  // one is here, for others like it
  Program* program = nullptr;
  Call call;
  TagWords recorded;  // the call
  Buffers buffers;
  SmallRun small;
  bool is_for(const CallKey& other) const { return repeats && key == other; }
};

class Collectives {
 public:
  // Connected from the start, so that ranks can always agree.
  static constexpr Algo kFirst[] = {Algo::kTree, Algo::kRing};

  Collectives(const Membership& me, Monitor& monitor, LinkPool& links) : me_(me), monitor_(monitor), links_(links) {}

  Result<void> connect(Deadline deadline, const std::function<bool()>& gives_up);
  Result<void> run(const Operation& operation);
  // See Communicator::repeat().
  enum class Repeated { kNo, kYes, kFailed };
  [[gnu::always_inline]] inline Repeated repeat(const CallKey& key, const void* input, void* output,
                                                const void* caller) noexcept;
  // All ranks are in this call: over the links that exist, before anyone waits for one that does not.
  Result<void> agree(const Call& call);
  void forget_operations() {
    for (CachedOperation& cached : cache_) cached.repeats = false;
  }

  // Unequal blocks count together.
  uint64_t planned_bytes(const Operation& operation) const;
  // What an operation of this kind takes now, and why.
  std::string explain(const Call& call) const;
  size_t scratch_bytes() const { return scratch_bytes_; }  // from any thread

 private:
  using ProgramKey = std::tuple<Collective, Algo, uint32_t, int>;  // lanes, root
  static constexpr ProgramKey key_of(Algo algo) { return {Collective::kAllReduce, algo, 1, 0}; }

  // Each operation has one place where it may be.
  CachedOperation& place_of(const CallKey& key) { return cache_[key.hash() % cache_.size()]; }
  void begin(CachedOperation& cached, const void* caller, uint64_t created) {
    monitor_.recorder().begin(cached.recorded, ++monitor_.begun().sequence, caller, created);
  }
  [[gnu::noinline]] Repeated finish(CachedOperation& cached, const void* input, void* output) noexcept;
  // Apart from run(), whose usual way should save and check nothing for this one.
  [[gnu::noinline]] Result<void> work_out(const Operation& operation);
  Result<void> drive_program(Program& program, const Call& call, const Operation& operation, size_t steps_done = 0);
  Result<Program*> find_program(const Call& call, uint64_t bytes);
  Result<void> add_program(const ProgramKey& key, Deadline deadline, const std::function<bool()>& gives_up = {});
  void keep_program(const ProgramKey& key, Program program);
  SmallRun::Turns turns() {
    Yielding& yielding = links_.yielding();
    return yielding.begin_operation() ? SmallRun::Turns{kYields, &yielding} : SmallRun::Turns{kSpins, nullptr};
  }

  const Membership& me_;
  Monitor& monitor_;
  LinkPool& links_;
  std::map<ProgramKey, Program> programs_;
  std::array<CachedOperation, 64> cache_;
  std::atomic<size_t> scratch_bytes_{0};  // of programs_
};

inline Collectives::Repeated Collectives::repeat(const CallKey& key, const void* input, void* output,
                                                 const void* caller) noexcept {
  CachedOperation& cached = place_of(key);
  if (!cached.is_for(key) || !cached.small || !cached.buffers.fit(input, output) || monitor_.failed())
    return Repeated::kNo;
  begin(cached, caller, 0);
  if (!cached.small.advance(monitor_.begun().sequence, input, output, turns())) return finish(cached, input, output);
  monitor_.recorder().end();
  return Repeated::kYes;
}

// Sums of 16- and 8-bit floats that take several steps (wide_sums.cpp): calls drive(piece) for one piece after the
// other, each the same operation on floats; there is something to add up. Ends with the first error.
Result<void> in_wide_pieces(const BoundCall& what, const std::function<Result<void>(const BoundCall&)>& drive);

}  // namespace tutti
