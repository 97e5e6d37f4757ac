#include "exec/run.h"

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {

// What is scaled before it is added up: small enough to stay in a core's cache.
constexpr uint64_t kPieceBytes = 64 << 10;
// Rooms of a piece each.
constexpr size_t kScalarsRoom = 0, kScaledRoom = 1, kRooms = 2;

TagWords unpack(const tuttiTag& tag) {
  TagWords words;
  memcpy(words.data(), &tag, sizeof tag);
  return words;
}

// Sends the value that the step before it has stored.
bool sends_again(const BoundStep& before, const BoundStep& step) {
  return step.send != nullptr && step.recvs.empty() && step.before.buffer == Buffer::kNone &&
         step.store.buffer == Buffer::kNone && before.store.buffer == Buffer::kOutput && step.local == before.store &&
         step.size == before.size;
}

}  // namespace

Run::Run(Program& program, const BoundCall& operation, const Recorder& recorder)
    : program_(program),
      operation_(operation),
      recorder_(recorder),
      tag_(to_tag(operation.call)),
      lowering_{program, operation},
      piece_bytes_(std::min<uint64_t>(kPieceBytes, program.sizes.slot_bytes) / 64 * 64),
      rounds_(lowering_.layout.rounds(operation.blocks.largest())),
      reduce_(lowering_.reduce_kernel()),
      stream_(operation.blocks.largest() * lowering_.elem_bytes >= operation.stream_from_bytes),
      lanes_left_(program.lanes.size()) {
  program_.bases[kInput] = as_base(operation.input);
  program_.bases[kOutput] = static_cast<char*>(operation.output);
  program_.bases[kScratch] = program_.scratch.data();
  for (BoundLane& lane : program_.lanes) {
    lane.round = lane.next = 0;
    lane.told = lane.expecting = false;
  }
}

Run::Poll Run::advance() {
  bool progress = false;
  for (BoundLane& lane : program_.lanes) {
    while (!lane.done() && (program_.on_device ? deliver(lane) : execute(lane))) {
      go_on(lane);
      progress = true;
    }
    if (error_.message.size() > 0) return Poll::kFailed;
  }
  if (lanes_left_ == 0 && program_.all_sent()) return Poll::kDone;
  return progress ? Poll::kProgress : Poll::kIdle;
}

uint64_t Run::rounds_of(const BoundLane& lane) const {
  return program_.step_by_step ? lowering_.layout.rounds(operation_.blocks.size(lane.steps[lane.next].size.block))
                               : rounds_;
}

void Run::go_on(BoundLane& lane) {
  lane.told = lane.expecting = false;
  if (program_.step_by_step) {
    if (++lane.round < rounds_of(lane)) return;
    lane.round = 0;
    lane.next++;
  } else if (++lane.next == lane.steps.size() && ++lane.round < rounds_) {
    lane.next = 0;
  }
  if (lane.done()) lanes_left_--;
}

bool Run::messages_are_there(const BoundStep& step) {
  for (size_t i = 0; i < step.recvs.size(); i++)
    if (!step.recvs[i]->try_peek(&program_.messages[i])) return false;
  return true;
}

// A message that is only stored may go to its place at once.
void Run::expect_message(BoundLane& lane) {
  lane.expecting = true;
  const LoweredStep step = lower(lane, lane.steps[lane.next]);
  if (step.bytes < kLendFromBytes) return;
  step.recvs[0]->expect(program_.address(step.store), step.bytes);
}

void Run::tell_places(BoundLane& lane) {
  lane.told = true;
  if (!operation_.lends) return;
  for (const Placeable& message : lane.steps[lane.next].expects) {
    const LoweredStep step = lower(lane, lane.steps[message.step]);
    if (step.bytes >= kLendFromBytes)
      step.recvs[0]->expect_ahead(message.ahead, program_.address(step.store), step.bytes);
  }
}

// The whole step or nothing: it needs its messages and its free slot at once.
bool Run::execute(BoundLane& lane) {
  if (!lane.told) tell_places(lane);
  const BoundStep& step = lane.steps[lane.next];
  if (!messages_are_there(step)) {
    if (!lane.expecting && is_copy(step) && step.store.buffer == Buffer::kOutput) expect_message(lane);
    return false;
  }
  void* slot = nullptr;
  if (step.send != nullptr && (slot = step.send->try_acquire()) == nullptr) return false;

  const LoweredStep lowered = lower(lane, step);
  if (!accept_messages(step, lowered.bytes)) return false;
  const void* lent = slot != nullptr ? lent_value(lowered) : nullptr;
  const Targets targets = this->targets(lane, lowered.bytes, slot, lent);
  if (targets.placed) lent = nullptr;
  const bool only_lends = lent != nullptr && step.store.buffer == Buffer::kNone;
  if (lowered.bytes > 0 && !only_lends && !compute(lowered, targets)) {
    // Its receivers may be failing as well, and wait until nobody writes there.
    for (size_t i = 0; targets.placed && i < targets.n; i++) lane.steps[lane.next + i].send->try_acquire();
    return false;
  }
  for (Link* link : step.recvs) link->release();
  if (slot != nullptr) send(step, lowered.bytes, slot, lent);
  for (size_t i = 1; i < targets.n; i++) {
    lane.next++;
    tell_places(lane);
    send(lane.steps[lane.next], lowered.bytes, nullptr, nullptr);
  }
  return true;
}

// A sum goes to its places from the rank that has completed it: so its receivers, who have been told to expect it
// there, need not read it again, nor does this rank for each of them. 4 ranks, registered: 256 KiB 27 -> 25 us, 16
// MiB 5.8 -> 5.5 ms. With more than four destinations at a time 8 ranks were slower by a sixth, unless they write past
// the cache.
Run::Targets Run::targets(const BoundLane& lane, uint32_t bytes, void* slot, const void* lent) const {
  Targets targets;
  if (slot == nullptr) return targets;
  const BoundStep& first = lane.steps[lane.next];
  const auto place = [&](const BoundStep& step) {
    void* const at = step.send->place(bytes);
    if (at != nullptr) targets.at[targets.n++] = at;
    return at != nullptr;
  };
  targets.placed = bytes >= kLendFromBytes && (first.completes || first.recvs.empty()) && place(first);
  if (!targets.placed) {
    if (lent == nullptr) targets.at[targets.n++] = slot;
    return targets;
  }
  for (size_t i = lane.next + 1; i < lane.steps.size() && targets.n < kMaxDestinations - 1; i++) {
    const BoundStep& step = lane.steps[i];
    if (!sends_again(first, step) || step.send->try_acquire() == nullptr || !place(step)) break;
  }
  return targets;
}

// Where the value that a step sends stays as it is, if that is worth lending.
const void* Run::lent_value(const LoweredStep& step) const {
  if (!operation_.lends || !program_.may_lend || step.bytes < kLendFromBytes) return nullptr;
  const bool is_stored = step.store.base == kOutput;
  const Place& place = is_stored ? step.store : step.sources[0];
  const bool only_sends = step.recvs.empty() && step.reduce.n_src == 1;
  if (!is_stored && (!only_sends || place.base == kScratch || is_scaled(place))) return nullptr;
  const char* const data = program_.address(place);
  return step.send->can_lend(data, step.bytes) ? data : nullptr;
}

void Run::send(const BoundStep& step, uint32_t bytes, void* slot, const void* lent) {
  const tuttiTag tag = pack(tag_of(step));
  if (lent != nullptr) {
    if (step.send->lend(lent, bytes, tag)) return;
    kernels().copy({lent, {slot}, 1, bytes});
  }
  step.send->publish(bytes, tag);
}

// What was lent is borrowed until it is released.
bool Run::borrow_messages(const LoweredStep& step, bool* any) {
  for (size_t i = 0; i < step.recvs.size(); i++) {
    const void* data = program_.messages[i].data;
    if (data == nullptr) {
      *any = true;
      auto borrowed = step.recvs[i]->borrow();
      if (!borrowed) {
        error_ = std::move(borrowed).error();
        return false;
      }
      data = borrowed.value();
    }
    program_.bases[kMessages + i] = as_base(data);
  }
  return true;
}

// False when a message could not be read.
bool Run::compute(const LoweredStep& step, const Targets& targets) {
  bool has_borrowed = false;
  if (!borrow_messages(step, &has_borrowed)) return false;
  uint64_t piece_elems = step.reduce.elems;
  if (std::any_of(step.sources, step.sources + step.reduce.n_src, [&](const Place& s) { return is_scaled(s); })) {
    program_.rooms.resize(kRooms * piece_bytes_);
    piece_elems = piece_bytes_ / lowering_.elem_bytes;
  }
  for (uint64_t at = 0; at < step.reduce.elems; at += piece_elems)
    compute_piece(step, at, std::min(piece_elems, step.reduce.elems - at), targets);
  return !has_borrowed || still_lent(step);
}

// A rank that was stopped in between finds that the lender could not wait: then it may have read anything.
bool Run::still_lent(const LoweredStep& step) {
  for (Link* link : step.recvs) {
    tuttiTransportError error{};
    const tuttiResult_t code = link->poll(&error);
    if (code == tuttiSuccess || code == tuttiInProgress) continue;
    error_ = to_error(code, error, link->peer());
    return false;
  }
  return true;
}

// One kernel call, for the elements from `at` on.
void Run::compute_piece(const LoweredStep& step, uint64_t at, uint64_t elems, const Targets& targets) {
  const uint64_t offset_bytes = at * lowering_.elem_bytes;
  ReduceArgs args = step.reduce;
  args.elems = elems;
  for (int i = 0; i < args.n_src; i++)
    program_.src[static_cast<size_t>(i)] = source(step.sources[i], offset_bytes, elems);
  const auto add_store = [&] {
    if (step.store.base != kNowhere) args.dst[args.n_dst++] = program_.address(step.store) + offset_bytes;
  };
  // Stores past the cache are the first ones, so what is to stay in it comes last.
  if (!operation_.one_way) add_store();
  for (size_t i = 0; i < targets.n; i++) args.dst[args.n_dst++] = static_cast<char*>(targets.at[i]) + offset_bytes;
  // What goes into scratch or a slot is read soon. But a slot's cache lines cross between CPUs twice where none comes
  // back with what the other side sends: written past the cache, they cross once. A broadcast of 300 KB takes 25 us
  // instead of 34 where CPUs share a core, 22 instead of 108 where they do not.
  if (operation_.one_way)
    args.n_stream = args.n_dst;
  else if (stream_ && step.store.base != kScratch)
    args.n_stream = (step.store.base == kOutput) + (targets.placed ? static_cast<int>(targets.n) : 0);
  if (operation_.one_way) add_store();
  if (args.n_src > 1 || args.divisor > 0) return reduce_(args);
  CopyArgs copy{args.src[0], {}, args.n_dst, args.elems * lowering_.elem_bytes, args.n_stream};
  std::copy_n(args.dst, args.n_dst, copy.dst);
  kernels().copy(copy);
}

// A part of the value, times this rank's scalar if it has one.
const void* Run::source(const Place& place, uint64_t offset_bytes, uint64_t elems) {
  const void* data = program_.address(place) + offset_bytes;
  if (!is_scaled(place)) return data;
  if (!scalars_ready_)
    for (uint64_t i = 0; i < piece_bytes_ / lowering_.elem_bytes; i++)
      memcpy(room(kScalarsRoom) + i * lowering_.elem_bytes, operation_.scalar, lowering_.elem_bytes);
  scalars_ready_ = true;
  const void* factors[] = {data, room(kScalarsRoom)};
  ReduceArgs args{factors, {room(kScaledRoom)}, 2, 1, elems};
  kernels().reduce[static_cast<int>(RedOp::kProd)][static_cast<int>(operation_.call.dtype)](args);
  return room(kScaledRoom);
}

void Run::disagree(const Call& mine, int peer, const Call& theirs) {
  error_ = mismatch_error(operation_.rank, mine, peer, theirs, recorder_);
  const Call same = counterpart(mine, theirs, recorder_);
  if (same.sequence == theirs.sequence && !is_point_to_point(theirs) && !is_same_request(same, theirs))
    differs_in_ = theirs.sequence;
}

bool Run::accept_messages(const BoundStep& step, uint32_t expected_bytes) {
  for (size_t i = 0; i < step.recvs.size(); i++) {
    const tuttiMessage& message = program_.messages[i];
    const int peer = step.recvs[i]->peer();
    if (memcmp(&message.tag, tag_of(step).data(), sizeof message.tag) != 0) {
      disagree(from_tag(tag_of(step)), peer, from_tag(unpack(message.tag)));
      return false;
    }
    if (message.bytes != expected_bytes) {
      error_ = {Code::kInternalError,
                format("rank %d sent a chunk of %u bytes where %u were expected in %s", peer, message.bytes,
                       expected_bytes, to_text(operation_.call).c_str()),
                peer};
      return false;
    }
  }
  return true;
}

void Run::recall() {
  for (BoundLane& lane : program_.lanes)
    if (!lane.done())
      for (const BoundStep& step : lane.steps)
        for (Link* link : step.recvs) link->recall();
  for (Link* link : program_.sends) link->recall();
}

bool Run::check_stray(Link& link) {
  tuttiTransportError ignored;
  link.poll(&ignored);
  tuttiMessage message;
  if (!link.try_peek(&message)) return false;
  const TagWords words = unpack(message.tag);
  if (words == tag_ || words[0] > tag_[0]) return false;  // ours, or of an operation that this rank has yet to begin
  // Point-to-point messages may wait for their receive, and a receive for its sender's earlier operations.
  if (is_point_to_point(from_tag(words)) || is_point_to_point(operation_.call)) return false;
  disagree(operation_.call, link.peer(), from_tag(words));
  return true;
}

}  // namespace tutti
