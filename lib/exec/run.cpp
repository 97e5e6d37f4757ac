#include "exec/run.h"

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {

// What is scaled before it is added up: small enough to stay in a core's cache.
constexpr uint64_t kPieceBytes = 64 << 10;
// Rooms of a piece each.
constexpr size_t kScalarsRoom = 0, kScaledRoom = 1, kRooms = 2;

RedOp kernel_op(RedOp op) {
  return op == RedOp::kPreMulSum ? RedOp::kSum : op;
}

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
      elem_bytes_(program.on_device ? 1 : dtype_bytes(operation.call.dtype)),
      piece_bytes_(std::min<uint64_t>(kPieceBytes, program.sizes.slot_bytes) / 64 * 64),
      layout_(elem_bytes_, program.n_chunks, program.sizes),
      rounds_(layout_.rounds(operation.blocks.largest())),
      reduce_(kernels().reduce[static_cast<int>(kernel_op(operation.call.op))][static_cast<int>(operation.call.dtype)]),
      copy_(kernels().copy),
      stream_(operation.blocks.largest() * elem_bytes_ >= operation.stream_from_bytes),
      lanes_left_(program.lanes.size()) {
  for (BoundLane& lane : program_.lanes) {
    lane.round = lane.next = 0;
    lane.told = lane.expecting = false;
  }
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
  if (program_.on_device) {
    if (!(lane.steps[lane.next].send != nullptr ? deliver(lane) : take_delivery(lane))) return false;
  } else {
    if (!lane.told) tell_places(lane);
    if (!execute(lane)) return false;
  }
  lane.told = lane.expecting = false;
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

bool Run::messages_are_there(const BoundStep& step) {
  for (size_t i = 0; i < step.recvs.size(); i++)
    if (!step.recvs[i]->try_peek(&program_.messages[i])) return false;
  return true;
}

Run::Part Run::part_of(const BoundLane& lane, const BoundStep& step) const {
  const PlacedSlice& size = step.size;
  return layout_.part(operation_.blocks.size(size.block), rounds_of(lane), lane.round, size.chunk);
}

// A message that is only stored may go to its place at once.
void Run::expect_message(BoundLane& lane) {
  lane.expecting = true;
  const BoundStep& step = lane.steps[lane.next];
  const Part part = part_of(lane);
  if (part.elems * elem_bytes_ < kLendFromBytes) return;
  step.recvs[0]->expect(address(step.store, {part.begin, part.elems, 0}),
                        static_cast<uint32_t>(part.elems * elem_bytes_));
}

void Run::tell_places(BoundLane& lane) {
  lane.told = true;
  if (!operation_.lends) return;
  for (const Placeable& message : lane.steps[lane.next].expects) {
    const BoundStep& step = lane.steps[message.step];
    const Part part = part_of(lane, step);
    const auto bytes = static_cast<uint32_t>(part.elems * elem_bytes_);
    if (bytes >= kLendFromBytes)
      step.recvs[0]->expect_ahead(message.ahead, address(step.store, {part.begin, part.elems, 0}), bytes);
  }
}

// The whole step or nothing: it needs its messages and its free slot at once.
bool Run::execute(BoundLane& lane) {
  const BoundStep& step = lane.steps[lane.next];
  if (!messages_are_there(step)) {
    if (!lane.expecting && is_copy(step) && step.store.buffer == Buffer::kOutput) expect_message(lane);
    return false;
  }
  void* slot = nullptr;
  if (step.send != nullptr && (slot = step.send->try_acquire()) == nullptr) return false;

  const Part part = part_of(lane);
  if (!accept_messages(step, part.elems * elem_bytes_)) return false;
  const void* lent = slot != nullptr ? lent_value(step, part) : nullptr;
  const Targets targets = this->targets(lane, part, slot, lent);
  if (targets.placed) lent = nullptr;
  const bool only_lends = lent != nullptr && step.store.buffer == Buffer::kNone;
  if (part.elems > 0 && !only_lends && !compute(step, part, targets)) {
    // Its receivers may be failing as well, and wait until nobody writes there.
    for (size_t i = 0; targets.placed && i < targets.n; i++) lane.steps[lane.next + i].send->try_acquire();
    return false;
  }
  for (Link* link : step.recvs) link->release();
  if (slot != nullptr) send(step, part, slot, lent);
  for (size_t i = 1; i < targets.n; i++) {
    lane.next++;
    tell_places(lane);
    send(lane.steps[lane.next], part, nullptr, nullptr);
  }
  return true;
}

// A sum goes to its places from the rank that has completed it: so its receivers, who have been told to expect it
// there, need not read it again, nor does this rank for each of them. 4 ranks, registered: 256 KiB 27 -> 25 us, 16
// MiB 5.8 -> 5.5 ms. With more than four destinations at a time 8 ranks were slower by a sixth, unless they write past
// the cache.
Run::Targets Run::targets(const BoundLane& lane, Part part, void* slot, const void* lent) const {
  Targets targets;
  if (slot == nullptr) return targets;
  const BoundStep& first = lane.steps[lane.next];
  const auto bytes = static_cast<uint32_t>(part.elems * elem_bytes_);
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
const void* Run::lent_value(const BoundStep& step, Part part) const {
  const auto bytes = static_cast<uint32_t>(part.elems * elem_bytes_);
  if (!operation_.lends || !program_.may_lend || bytes < kLendFromBytes) return nullptr;
  const bool is_stored = step.store.buffer == Buffer::kOutput;
  const bool only_sends = step.recvs.empty() && step.before.buffer == Buffer::kNone;
  if (!is_stored && (!only_sends || step.local.buffer == Buffer::kScratch || is_scaled(step.local))) return nullptr;
  const char* const data = address(is_stored ? step.store : step.local, {part.begin, part.elems, 0});
  return step.send->can_lend(data, bytes) ? data : nullptr;
}

void Run::send(const BoundStep& step, Part part, void* slot, const void* lent) {
  const tuttiTag tag = pack(tag_of(step));
  const auto bytes = static_cast<uint32_t>(part.elems * elem_bytes_);
  if (lent != nullptr) {
    if (step.send->lend(lent, bytes, tag)) return;
    copy_({lent, {slot}, 1, bytes});
  }
  step.send->publish(bytes, tag);
}

// What was lent is borrowed until it is released.
bool Run::borrow_messages(const BoundStep& step, bool* any) {
  for (size_t i = 0; i < step.recvs.size(); i++) {
    if (program_.messages[i].data != nullptr) continue;
    *any = true;
    auto data = step.recvs[i]->borrow();
    if (!data) {
      error_ = std::move(data).error();
      return false;
    }
    program_.messages[i].data = data.value();
  }
  return true;
}

// False when a message could not be read.
bool Run::compute(const BoundStep& step, Part part, const Targets& targets) {
  bool has_borrowed = false;
  if (!borrow_messages(step, &has_borrowed)) return false;
  compute_part(step, part, targets);
  return !has_borrowed || still_lent(step);
}

// A rank that was stopped in between finds that the lender could not wait: then it may have read anything.
bool Run::still_lent(const BoundStep& step) {
  for (Link* link : step.recvs) {
    tuttiTransportError error{};
    const tuttiResult_t code = link->poll(&error);
    if (code == tuttiSuccess || code == tuttiInProgress) continue;
    error_ = to_error(code, error, link->peer());
    return false;
  }
  return true;
}

void Run::compute_part(const BoundStep& step, Part part, const Targets& targets) {
  if (!is_scaled(step.before) && !is_scaled(step.local)) {
    compute_piece(step, {part.begin, part.elems, 0}, targets);
    return;
  }
  program_.rooms.resize(kRooms * piece_bytes_);
  const uint64_t piece_elems = piece_bytes_ / elem_bytes_;
  for (uint64_t at = 0; at < part.elems; at += piece_elems)
    compute_piece(step, {part.begin + at, std::min(piece_elems, part.elems - at), at * elem_bytes_}, targets);
}

// One kernel call.
void Run::compute_piece(const BoundStep& step, const Piece& piece, const Targets& targets) {
  ReduceArgs args;
  args.elems = piece.elems;
  args.src = program_.src.data();
  const auto add_source = [&](const void* data) { program_.src[static_cast<size_t>(args.n_src++)] = data; };
  if (step.before.buffer != Buffer::kNone) add_source(source(step.before, piece));
  for (size_t i = 0; i <= step.recvs.size(); i++) {
    if (i == step.local_place && step.local.buffer != Buffer::kNone) add_source(source(step.local, piece));
    if (i < step.recvs.size()) add_source(static_cast<const char*>(program_.messages[i].data) + piece.offset_bytes);
  }
  const auto add_store = [&] {
    if (step.store.buffer != Buffer::kNone) args.dst[args.n_dst++] = address(step.store, piece);
  };
  // Stores past the cache are the first ones, so what is to stay in it comes last.
  if (!operation_.one_way) add_store();
  for (size_t i = 0; i < targets.n; i++)
    args.dst[args.n_dst++] = static_cast<char*>(targets.at[i]) + piece.offset_bytes;
  // What goes into scratch or a slot is read soon. But a slot's cache lines cross between CPUs twice where none comes
  // back with what the other side sends: written past the cache, they cross once. A broadcast of 300 KB takes 25 us
  // instead of 34 where CPUs share a core, 22 instead of 108 where they do not.
  if (operation_.one_way)
    args.n_stream = args.n_dst;
  else if (stream_ && step.store.buffer != Buffer::kScratch)
    args.n_stream = (step.store.buffer == Buffer::kOutput) + (targets.placed ? static_cast<int>(targets.n) : 0);
  if (operation_.one_way) add_store();
  if (step.completes && operation_.call.op == RedOp::kAvg) args.divisor = static_cast<uint32_t>(operation_.n_ranks);
  if (args.n_src > 1 || args.divisor > 0) return reduce_(args);
  CopyArgs copy{args.src[0], {}, args.n_dst, args.elems * elem_bytes_, args.n_stream};
  std::copy_n(args.dst, args.n_dst, copy.dst);
  copy_(copy);
}

// This rank's own part of the value, times its scalar if it has one.
const void* Run::source(const PlacedSlice& slice, const Piece& piece) {
  const void* data = address(slice, piece);
  if (!is_scaled(slice)) return data;
  if (!scalars_ready_)
    for (uint64_t i = 0; i < piece_bytes_ / elem_bytes_; i++)
      memcpy(room(kScalarsRoom) + i * elem_bytes_, operation_.scalar, elem_bytes_);
  scalars_ready_ = true;
  const void* factors[] = {data, room(kScalarsRoom)};
  ReduceArgs args{factors, {room(kScaledRoom)}, 2, 1, piece.elems};
  kernels().reduce[static_cast<int>(RedOp::kProd)][static_cast<int>(operation_.call.dtype)](args);
  return room(kScaledRoom);
}

bool Run::accept_messages(const BoundStep& step, uint64_t expected_bytes) {
  for (size_t i = 0; i < step.recvs.size(); i++)
    if (!accept_message(step, *step.recvs[i], program_.messages[i], expected_bytes)) return false;
  return true;
}

void Run::disagree(const Call& mine, int peer, const Call& theirs) {
  error_ = mismatch_error(operation_.rank, mine, peer, theirs, recorder_);
  const Call same = counterpart(mine, theirs, recorder_);
  if (same.sequence == theirs.sequence && !is_point_to_point(theirs) && !is_same_request(same, theirs))
    differs_in_ = theirs.sequence;
}

bool Run::accept_message(const BoundStep& step, const Link& link, const tuttiMessage& message,
                         uint64_t expected_bytes) {
  const int peer = link.peer();
  if (memcmp(&message.tag, tag_of(step).data(), sizeof message.tag) != 0) {
    const TagWords words = unpack(message.tag);
    disagree(from_tag(tag_of(step)), peer, from_tag(words));
    return false;
  }
  if (message.bytes != expected_bytes) {
    error_ = {Code::kInternalError,
              format("rank %d sent a chunk of %u bytes where %llu were expected in %s", peer, message.bytes,
                     static_cast<unsigned long long>(expected_bytes), to_text(operation_.call).c_str()),
              peer};
    return false;
  }
  return true;
}

// The piece's begin is its place within a block of the user's buffers; scratch holds one part at a time.
char* Run::address(const PlacedSlice& slice, const Piece& piece) const {
  if (slice.buffer == Buffer::kScratch)
    return program_.scratch.data() + static_cast<size_t>(slice.chunk) * program_.sizes.slot_bytes + piece.offset_bytes;
  // The input is only ever a source.
  void* base = slice.buffer == Buffer::kInput ? const_cast<void*>(operation_.input) : operation_.output;
  // As a number: point-to-point messages have no common buffer, their blocks begin at addresses.
  return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(base) +
                                 (operation_.blocks.begin(slice.buffer, slice.block) + piece.begin) * elem_bytes_);
}

bool Run::all_sent() {
  return std::all_of(program_.sends.begin(), program_.sends.end(), [](Link* link) { return link->unsent() == 0; });
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
