#include <bit>
#include <cstring>

#include "exec/wait.h"

namespace tutti {
namespace {

// Above this a Run costs only a few per cent more: 0.2 us, out of 1.3 for 32 KiB by 2 ranks and 2.9 for 100 KB.
constexpr uint32_t kMostMessageBytes = 64 << 10;

}  // namespace

void SmallRun::prepare(Program& program, const BoundCall& what) {
  clear();
  const Call& call = what.call;
  const Lowering lowering{program, what};
  if (lowering.layout.rounds(call.count) > 1 || program.lanes.size() != 1 || !program.lanes[0].is_whole()) return;
  if (program.step_by_step || call.op == RedOp::kPreMulSum) return;
  program_ = &program;
  bases_ = program.workspace.bases.data();
  bases_[kScratch] = program.scratch.get();
  tag_ = std::bit_cast<tuttiTag>(to_tag(call));
  reduce_ = lowering.reduce_kernel();
  const std::vector<BoundStep>& steps = program.lanes[0].steps;
  const size_t most_sources = program.workspace.places.size();
  sources_.resize(steps.size() * most_sources);
  Place* sources = sources_.data();
  for (const BoundStep& step : steps) {
    steps_.push_back(lowering.step(step, 1, 0, sources));
    if (steps_.back().bytes > kMostMessageBytes) return clear();
    sources += most_sources;
  }
}

bool SmallRun::advance(uint64_t sequence, const void* input, void* output, Turns turns) {
  done_ = 0;
  if (exposes_) return false;
  tag_.word[0] = sequence;
  bases_[kInput] = as_base(input);
  bases_[kOutput] = static_cast<char*>(output);
  int least_sent = 2;  // what push() and publish() return
  for (LoweredStep& step : steps_) {
    const int sent = step.pushes ? push(step) : carry_out(step, &turns);
    if (sent == 0) [[unlikely]] {
      done_ = static_cast<size_t>(&step - steps_.data());
      return false;
    }
    least_sent = std::min(least_sent, sent);
  }
  if (least_sent == 2 || program_->all_sent()) return true;
  done_ = steps_.size();
  return false;
}

// A slot; null if there is none, or if the value can be sent from where it is, which is left to a Run. Copies whose
// originals cannot be exposed are not worth that.
[[gnu::noinline]] char* SmallRun::slot_unless_exposed(const LoweredStep& step) {
  void* slot = nullptr;
  const tuttiRoom room = step.send->acquire(address(step.exposable), step.bytes, TUTTI_NOT_POSTED, &slot);
  exposes_ = room == TUTTI_EXPOSED;
  return room == TUTTI_SLOT ? static_cast<char*>(slot) : nullptr;
}

// The same for any step that sends.
inline char* SmallRun::slot_for(const LoweredStep& step) {
  return step.exposable.base != kNowhere ? slot_unless_exposed(step)
                                         : static_cast<char*>(step.send->acquire(step.bytes));
}

// 0: it cannot be done yet, or not here; else what the link returned for the message.
inline int SmallRun::push(const LoweredStep& step) {
  const char* const from = address(step.sources[0]);
  if (step.exposable.base != kNowhere && slot_unless_exposed(step) == nullptr) return 0;
  // Without bytes the pointers may be null.
  if (step.store.base != kNowhere && step.bytes > 0 && address(step.store) != from)
    memcpy(address(step.store), from, step.bytes);
  return step.send->push(from, step.bytes, tag_);
}

// Returns the same as push().
inline int SmallRun::carry_out(LoweredStep& step, Turns* turns) {
  if (!take_messages(step, turns)) return 0;
  char* slot = nullptr;
  if (step.send != nullptr && (slot = slot_for(step)) == nullptr) return 0;
  if (step.reduce.elems > 0) compute(step, slot);
  for (Link* link : step.recvs) link->release();
  return slot != nullptr ? step.send->publish(step.bytes, tag_) : 2;
}

// Null also if another message is there, or one that is exposed: a Run has to see to that.
[[gnu::noinline]] const void* SmallRun::wait_for(Link& link, uint32_t bytes, Turns* turns) {
  // Looks before it yields: over TCP a message may have arrived while this rank sent its own, and an all-reduce of 8
  // bytes by 4 ranks on 2 CPUs takes four yields instead of nine.
  while (--turns->left > 0) {
    if (turns->yields != nullptr || turns->left % kTurnsPerPoll == 0) {
      link.poll(nullptr);  // a Run will see a failure again
      tuttiMessage message;
      if (link.peek(&message)) {
        exposes_ = message.data == nullptr;
        return link.match(bytes, tag_);
      }
    } else if (const void* const data = link.match(bytes, tag_)) {
      return data;
    }
    if (turns->yields != nullptr)
      turns->yields->give_way();
    else
      pause_cpu();
  }
  return nullptr;
}

// False if one is missing, or is not the expected one.
inline bool SmallRun::take_messages(const LoweredStep& step, Turns* turns) {
  for (size_t i = 0; i < step.recvs.size(); i++) {
    const void* data = step.recvs[i]->match(step.bytes, tag_);
    if (data == nullptr && (data = wait_for(*step.recvs[i], step.bytes, turns)) == nullptr) return false;
    bases_[kMessages + i] = as_base(data);
  }
  return true;
}

inline void SmallRun::compute(LoweredStep& step, char* slot) {
  char* const store = step.store.base != kNowhere ? address(step.store) : nullptr;
  ReduceArgs& reduce = step.reduce;
  if (reduce.n_src == 1 && reduce.divisor == 0) {
    const char* const from = address(step.sources[0]);
    if (store != nullptr && store != from) memcpy(store, from, step.bytes);
    if (slot != nullptr) memcpy(slot, from, step.bytes);
    return;
  }
  reduce.n_dst = 0;
  if (store != nullptr) reduce.dst[reduce.n_dst++] = store;
  if (slot != nullptr) reduce.dst[reduce.n_dst++] = slot;
  const void** const src = program_->workspace.src.data();
  for (int i = 0; i < reduce.n_src; i++) src[i] = address(step.sources[i]);
  reduce_(reduce);
}

}  // namespace tutti
