#include "exec/small_run.h"

#include <cstring>

#include "exec/pause.h"

namespace tutti {
namespace {

[[gnu::noinline]] bool wait_for(Link& link, tuttiMessage* message, int* turns) {
  while (--*turns > 0) {
    pause_cpu();
    if (*turns % kTurnsPerPoll == 0) link.poll(nullptr);  // a failure shows again in a Run
    if (link.try_peek(message)) return true;
  }
  return false;
}

}  // namespace

void SmallRun::prepare(Program& program, const Call& call, int n_ranks) {
  clear();
  const size_t elem_bytes = dtype_bytes(call.dtype);
  const ChunkLayout layout(elem_bytes, program.n_chunks, program.slot_bytes);
  const uint64_t bytes = call.count * elem_bytes;
  if (bytes > kMostBytes || layout.rounds(call.count) > 1) return;
  if (program.may_lend && call.lends != Lending::kNothing && bytes >= kLendFromBytes) return;
  if (program.lanes.size() != 1 || program.step_by_step || call.op == RedOp::kPreMulSum) return;
  program_ = &program;
  tag_ = to_tag(call);
  reduce_ = kernels().reduce[static_cast<int>(call.op)][static_cast<int>(call.dtype)];
  bases_[static_cast<int>(Buffer::kScratch)] = program.scratch.data();
  const std::vector<BoundStep>& steps = program.lanes[0].steps;
  sources_.clear();
  sources_.reserve(steps.size() * program.src.size());  // a step's are pointed to
  const uint64_t chunk_elems = layout.chunk_elems(call.count, 1);
  for (const BoundStep& step : steps) {
    const uint64_t begin = std::min(call.count, step.size.chunk * chunk_elems);
    const auto elems = static_cast<uint32_t>(std::min(chunk_elems, call.count - begin));
    const auto place = [&](const PlacedSlice& slice) -> Place {
      if (slice.buffer == Buffer::kScratch) return {slice.buffer, -1, uint64_t{slice.chunk} * program.slot_bytes};
      return {slice.buffer, -1, (slice.block * call.count + begin) * elem_bytes};
    };
    const size_t first = sources_.size();
    const auto add_source = [&](const PlacedSlice& slice) {
      if (slice.buffer != Buffer::kNone) sources_.push_back(place(slice));
    };
    add_source(step.before);
    for (size_t i = 0; i <= step.recvs.size(); i++) {
      if (i == step.local_place) add_source(step.local);
      if (i < step.recvs.size()) sources_.push_back({Buffer::kNone, static_cast<int>(i), 0});
    }
    steps_.push_back({step.recvs.data(), step.send, static_cast<uint32_t>(step.recvs.size()),
                      static_cast<uint32_t>(sources_.size() - first), sources_.data() + first, place(step.store),
                      static_cast<uint32_t>(elems * elem_bytes), elems,
                      step.completes && call.op == RedOp::kAvg ? static_cast<uint32_t>(n_ranks) : 0});
  }
}

bool SmallRun::advance(uint64_t sequence, const void* input, void* output, int turns) {
  tag_[0] = sequence;
  bases_[static_cast<int>(Buffer::kInput)] = static_cast<char*>(const_cast<void*>(input));  // only ever a source
  bases_[static_cast<int>(Buffer::kOutput)] = static_cast<char*>(output);
  tuttiTag tag;
  memcpy(&tag, tag_.data(), sizeof tag);
  const SmallStep* const steps = steps_.data();
  const size_t n_steps = steps_.size();
  for (done_ = 0; done_ < n_steps; done_++) {
    const SmallStep& step = steps[done_];
    if (step.n_recvs > 0 && !take_messages(step, &turns)) return false;
    char* slot = nullptr;
    if (step.send != nullptr && (slot = static_cast<char*>(step.send->try_acquire())) == nullptr) return false;
    if (step.elems > 0) compute(step, slot);
    for (uint32_t i = 0; i < step.n_recvs; i++) step.recvs[i]->release();
    if (slot != nullptr) step.send->publish(step.bytes, tag);
  }
  return all_sent();
}

// False if one is not there, or not what is due.
inline bool SmallRun::take_messages(const SmallStep& step, int* turns) {
  tuttiMessage* const messages = program_->messages.data();
  for (uint32_t i = 0; i < step.n_recvs; i++) {
    tuttiMessage& message = messages[i];
    if (!step.recvs[i]->try_peek(&message) && !wait_for(*step.recvs[i], &message, turns)) return false;
    if (message.bytes != step.bytes || message.data == nullptr) return false;
    if (memcmp(&message.tag, tag_.data(), sizeof message.tag) != 0) return false;
  }
  return true;
}

inline void SmallRun::compute(const SmallStep& step, char* slot) {
  char* const store = step.store.buffer != Buffer::kNone ? in_buffer(step.store) : nullptr;
  if (step.n_sources == 1 && step.divisor == 0) {
    const void* const from = address(step.sources[0]);
    if (store != nullptr && store != from) memcpy(store, from, step.bytes);
    if (slot != nullptr) memcpy(slot, from, step.bytes);
    return;
  }
  ReduceArgs args;
  if (store != nullptr) args.dst[args.n_dst++] = store;
  if (slot != nullptr) args.dst[args.n_dst++] = slot;
  const void** const src = program_->src.data();
  for (uint32_t i = 0; i < step.n_sources; i++) src[i] = address(step.sources[i]);
  args.src = src;
  args.n_src = static_cast<int>(step.n_sources);
  args.elems = step.elems;
  args.divisor = step.divisor;
  reduce_(args);
}

inline bool SmallRun::all_sent() const {
  for (Link* link : program_->sends)
    if (link->unsent() > 0) return false;
  return true;
}

}  // namespace tutti
