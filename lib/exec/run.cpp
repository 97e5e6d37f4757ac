#include "exec/run.h"

#include <algorithm>
#include <cstring>

namespace tutti {

Run::Run(Program& program, const Operation& operation, const History& history)
    : program_(program),
      operation_(operation),
      history_(history),
      tag_(to_tag(operation.call)),
      elem_bytes_(dtype_bytes(operation.call.dtype)),
      layout_(elem_bytes_, program.n_chunks, program.slot_bytes),
      rounds_(layout_.rounds(operation.blocks.largest())),
      reduce_(kernels().reduce[static_cast<int>(operation.call.op)][static_cast<int>(operation.call.dtype)]),
      copy_(kernels().copy),
      stream_(operation.blocks.largest() * elem_bytes_ >= operation.stream_from_bytes),
      lanes_left_(program.lanes.size()) {
  for (BoundLane& lane : program_.lanes) lane.round = lane.next = 0;
}

Run::Poll Run::advance() {
  bool progress = false;
  for (BoundLane& lane : program_.lanes) {
    while (!lane.done() && advance_lane(lane)) progress = true;
    if (error_.message.size() > 0) return Poll::kFailed;
  }
  if (lanes_left_ == 0 && all_sent()) return Poll::kDone;
  return progress ? Poll::kProgress : Poll::kIdle;
}

uint64_t Run::rounds_of(const BoundLane& lane) const {
  return program_.step_by_step ? layout_.rounds(operation_.blocks.size(lane.steps[lane.next].size.block)) : rounds_;
}

bool Run::advance_lane(BoundLane& lane) {
  if (!execute(lane)) return false;
  if (program_.step_by_step) {
    if (++lane.round < rounds_of(lane)) return true;
    lane.round = 0;
    lane.next++;
  } else if (++lane.next == lane.steps.size() && ++lane.round < rounds_) {
    lane.next = 0;
  }
  if (lane.done()) lanes_left_--;
  return true;
}

// The whole step or nothing: it needs its message and its free slot at once.
bool Run::execute(const BoundLane& lane) {
  const BoundStep& step = lane.steps[lane.next];
  tuttiMessage message{};
  if (step.recv != nullptr && !step.recv->try_peek(&message)) return false;
  void* to_send = nullptr;
  if (step.send != nullptr && (to_send = step.send->try_acquire()) == nullptr) return false;

  const uint64_t block_elems = operation_.blocks.size(step.size.block);
  const uint64_t chunk_elems = layout_.chunk_elems(block_elems, rounds_of(lane));
  const uint64_t begin = (lane.round * program_.n_chunks + step.size.chunk) * chunk_elems;
  const uint64_t elems = begin >= block_elems ? 0 : std::min(chunk_elems, block_elems - begin);
  if (step.recv != nullptr && !accept_message(step, message, elems * elem_bytes_)) return false;
  if (elems > 0) compute(step, begin, elems, message.data, to_send);
  if (step.recv != nullptr) step.recv->release();
  if (step.send != nullptr) {
    tuttiTag tag;
    memcpy(&tag, tag_of(step).data(), sizeof tag);
    step.send->publish(static_cast<uint32_t>(elems * elem_bytes_), tag);
  }
  return true;
}

void Run::compute(const BoundStep& step, uint64_t begin, uint64_t elems, const void* received, void* to_send) {
  ReduceArgs args;
  if (step.before.buffer != Buffer::kNone) args.src[args.n_src++] = address(step.before, begin);
  if (step.recv != nullptr) args.src[args.n_src++] = received;
  if (step.local.buffer != Buffer::kNone) args.src[args.n_src++] = address(step.local, begin);
  const bool stores = step.store.buffer != Buffer::kNone;
  if (stores) args.dst[args.n_dst++] = address(step.store, begin);
  if (to_send != nullptr) args.dst[args.n_dst++] = to_send;
  args.stream_dst0 = step.store.buffer == Buffer::kOutput && stream_;
  if (step.completes && operation_.call.op == RedOp::kAvg) args.divisor = static_cast<uint32_t>(operation_.n_ranks);
  if (args.n_src > 1 || args.divisor > 0) {
    args.elems = elems;
    reduce_(args);
  } else {
    copy_({args.src[0], {args.dst[0], args.dst[1]}, args.n_dst, elems * elem_bytes_, args.stream_dst0});
  }
}

bool Run::accept_message(const BoundStep& step, const tuttiMessage& message, uint64_t expected_bytes) {
  const int peer = step.recv->peer();
  if (memcmp(&message.tag, tag_of(step).data(), sizeof message.tag) != 0) {
    TagWords words;
    memcpy(words.data(), &message.tag, sizeof message.tag);
    error_ = mismatch_error(operation_.rank, from_tag(tag_of(step)), peer, from_tag(words), history_);
    return false;
  }
  if (message.bytes != expected_bytes) {
    error_ = {Code::kInternalError,
              format("rank %d sent a chunk of %u bytes where %llu were due in %s", peer, message.bytes,
                     static_cast<unsigned long long>(expected_bytes), to_text(operation_.call).c_str()),
              peer};
    return false;
  }
  return true;
}

// `begin`: the chunk's first element within its block.
char* Run::address(const BoundSlice& slice, uint64_t begin) const {
  if (slice.buffer == Buffer::kScratch)
    return program_.scratch.data() + static_cast<size_t>(slice.chunk) * program_.slot_bytes;
  // The input is only ever a source.
  void* base = slice.buffer == Buffer::kInput ? const_cast<void*>(operation_.input) : operation_.output;
  // As a number: point-to-point messages have no common buffer, their blocks begin at addresses.
  return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(base) +
                                 (operation_.blocks.begin(slice.buffer, slice.block) + begin) * elem_bytes_);
}

bool Run::all_sent() {
  return std::all_of(program_.sends.begin(), program_.sends.end(), [](Link* link) { return link->unsent() == 0; });
}

// Calls visit(link, for_slot) for each link that holds a lane up, and for those with unsent messages. False if some
// lane is not held up at all.
template <class Visit>
bool Run::for_each_blocked(Visit&& visit) const {
  bool all_blocked = true;
  for (const BoundLane& lane : program_.lanes) {
    if (lane.done()) continue;
    const BoundStep& step = lane.steps[lane.next];
    tuttiMessage ignored;
    if (step.recv != nullptr && !step.recv->try_peek(&ignored))
      visit(*step.recv, false);
    else if (step.send != nullptr && step.send->try_acquire() == nullptr)
      visit(*step.send, true);
    else
      all_blocked = false;
  }
  for (Link* link : program_.sends)
    if (link->unsent() > 0) visit(*link, true);
  return all_blocked;
}

bool Run::poll_links() {
  bool well = true;
  for_each_blocked([&](Link& link, bool) {
    tuttiTransportError error{};
    const tuttiResult_t code = link.poll(&error);
    if (!well || code == tuttiSuccess || code == tuttiInProgress) return;
    error_ = to_error(code, error, link.peer());
    error_.message += "; this rank is in " + to_text(operation_.call);
    well = false;
  });
  return well;
}

bool Run::prepare_sleep(std::vector<Sleeper>* sleepers) {
  bool may_sleep = true;
  const bool all_blocked = for_each_blocked([&](Link& link, bool for_slot) {
    tuttiWait wait{-1, 0};
    if (!link.wait_begin(for_slot, &wait)) may_sleep = false;
    sleepers->push_back({&link, wait});
  });
  return may_sleep && all_blocked;  // a message may have come since advance()
}

std::string Run::waits_for() const {
  std::string text;
  for_each_blocked([&](Link& link, bool for_slot) {
    text += format("%srank %d (%s)", text.empty() ? "" : ", ", link.peer(),
                   for_slot ? "to take what this rank sends" : "to send");
  });
  return text;
}

bool Run::check_stray(Link& link) {
  tuttiTransportError ignored;
  link.poll(&ignored);
  tuttiMessage message;
  if (!link.try_peek(&message)) return false;
  TagWords words;
  memcpy(words.data(), &message.tag, sizeof message.tag);
  if (words == tag_ || words[0] > tag_[0]) return false;  // ours, or of an operation that this rank has yet to begin
  // Point-to-point messages may wait for their receive, and a receive for its sender's earlier operations.
  if (is_point_to_point(from_tag(words)) || is_point_to_point(operation_.call)) return false;
  error_ = mismatch_error(operation_.rank, operation_.call, link.peer(), from_tag(words), history_);
  return true;
}

}  // namespace tutti
