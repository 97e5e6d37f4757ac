#include "exec/run.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tutti {
namespace {

// Whether `step` sends the value that the step before it has stored.
bool sends_again(const BoundStep& before, const BoundStep& step) {
  return step.send != nullptr && step.recvs.empty() && step.before.buffer == Buffer::kNone &&
         step.store.buffer == Buffer::kNone && before.store.buffer == Buffer::kOutput && step.local == before.store &&
         step.size == before.size;
}

bool is_copy(const BoundStep& step) {
  return step.recvs.size() == 1 && step.before.buffer == Buffer::kNone && step.local.buffer == Buffer::kNone;
}

bool needs_nobody(const BoundStep& step) {
  return step.recvs.empty() && step.send == nullptr;
}

// Of all blocks, because the largest one need not have the longest chunk.
uint64_t most_rounds(const ChunkLayout& layout, const Blocks& blocks) {
  uint64_t most = blocks.elems.empty() ? layout.rounds(blocks.uniform_elems) : 1;
  for (const uint64_t elems : blocks.elems) most = std::max(most, layout.rounds(elems));
  return most;
}

// A tuttiAlltoAllv has its place between the collectives, and tuttiSend and tuttiRecv of other ranks, which have none,
// may be its counterparts.
bool may_meet(const Call& mine, Call theirs) {
  if (!is_point_to_point(mine) || (mine.blocks != 0 && theirs.blocks != 0)) return false;
  theirs.blocks = mine.blocks;
  return mine == theirs;
}

}  // namespace

Run::Run(Program& program, const BoundCall& operation, const Recorder& recorder, size_t steps_done)
    : program_(program),
      operation_(operation),
      recorder_(recorder),
      tag_(to_tag(operation.call)),
      lowering_{program, operation},
      combiner_(program, operation, lowering_),
      rounds_(most_rounds(lowering_.layout, operation.blocks)),
      lanes_left_(program.lanes.size()) {
  program_.workspace.bases[kInput] = as_base(operation.input);
  program_.workspace.bases[kOutput] = static_cast<char*>(operation.output);
  program_.workspace.bases[kScratch] = program_.scratch.get();
  for (BoundLane& lane : program_.lanes) {
    begin(lane);
    lane.round = 0;
    lane.told = lane.expecting = false;
  }
  if (steps_done == 0) return;
  program_.lanes[0].next = steps_done;
  if (program_.lanes[0].done()) lanes_left_ = 0;
}

Run::Poll Run::advance() {
  bool progress = false;
  for (BoundLane& lane : program_.lanes) {
    while (!lane.done()) {
      const bool is_local = needs_nobody(lane.steps[lane.next]);
      if (!(program_.on_device ? deliver(lane) : execute(lane))) break;
      go_on(lane);
      progress = true;
      if (is_local) break;  // one chunk at a time: meanwhile peers wait for the other lanes
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
  } else if (++lane.next == lane.steps.size() && lane.after == 0 && ++lane.round < rounds_) {
    begin(lane);
  }
  if (!lane.done()) return;
  if (lane.after == 0)
    lanes_left_--;
  else
    program_.turn_page(lane, lane.before + static_cast<uint32_t>(lane.steps.size()));
}

void Run::begin(BoundLane& lane) {
  if (lane.before > 0) program_.turn_page(lane, 0);
  lane.next = 0;
}

bool Run::messages_are_there(const BoundStep& step) {
  for (size_t i = 0; i < step.recvs.size(); i++)
    if (!step.recvs[i]->peek(&program_.workspace.messages[i])) return false;
  return true;
}

// A message that is only stored may go straight to its place, unless it is small.
void Run::post(const BoundLane& lane, const BoundStep& storing, uint32_t ahead) {
  if (!lowering_.exposes_outputs) return;
  const LoweredStep step = lower(lane, storing);
  if (step.bytes < kExposeFromBytes) return;
  step.recvs[0]->post(ahead, program_.workspace.address(step.store), step.bytes);
}

void Run::post_ahead(BoundLane& lane) {
  lane.told = true;
  if (!operation_.exposes.any) return;
  for (const Placeable& message : lane.steps[lane.next].expects) post(lane, lane.steps[message.step], message.ahead);
}

// All or nothing: a step needs its messages and its free slot at the same time.
bool Run::execute(BoundLane& lane) {
  if (!lane.told) post_ahead(lane);
  const BoundStep& step = lane.steps[lane.next];
  if (!messages_are_there(step)) {
    if (!lane.expecting && is_copy(step) && step.store.buffer == Buffer::kOutput) {
      lane.expecting = true;
      post(lane, step, 0);
    }
    return false;
  }
  const LoweredStep lowered = lower(lane, step);
  if (!accept_messages(step, lowered.bytes)) return false;
  Targets targets;
  if (step.send != nullptr && !acquire(lane, lowered, &targets)) return false;
  const bool only_exposes = targets.exposed != nullptr && step.store.buffer == Buffer::kNone;
  if (lowered.bytes > 0 && !only_exposes && !compute(lowered, targets)) {
    // Gives up the posted places: their receivers may be failing too, and wait until nobody writes there.
    for (size_t i = 0; targets.posted && i < targets.n; i++) lane.steps[lane.next + i].send->acquire();
    return false;
  }
  for (Link* link : step.recvs) link->release();
  if (step.send != nullptr) send(step, lowered.bytes, targets.exposed);
  for (size_t i = 1; i < targets.n; i++) {
    lane.next++;
    post_ahead(lane);
    send(lane.steps[lane.next], lowered.bytes, nullptr);
  }
  return true;
}

// The rank that completes a sum writes it to its posted places: so the receivers, which have posted them, need not read
// it again, nor this rank once for each of them: 16 MiB by 4 ranks, registered, 5.8 -> 5.5 ms. With more than four
// destinations at a time 8 ranks were slower by a sixth, unless they write past the cache.
bool Run::acquire(const BoundLane& lane, const LoweredStep& lowered, Targets* targets) const {
  const BoundStep& first = lane.steps[lane.next];
  const void* data = lowered.exposable.base == kNowhere ? nullptr : program_.workspace.address(lowered.exposable);
  const bool may_be_posted =
      lowering_.exposes_outputs && lowered.bytes >= kExposeFromBytes && (first.completes || first.recvs.empty());
  tuttiRoom room =
      first.send->acquire(data, lowered.bytes, may_be_posted ? TUTTI_IF_POSTED : TUTTI_NOT_POSTED, &targets->at[0]);
  if (room == TUTTI_SLOT && lowered.exposable.base == kInput && lowered.store.base == kOutput &&
      lowering_.exposes_outputs) {  // the input is not registered, but the output may be
    data = program_.workspace.address(lowered.store);
    room = first.send->acquire(data, lowered.bytes, TUTTI_NOT_POSTED, &targets->at[0]);
  }
  if (room == TUTTI_NO_ROOM) return false;
  if (room == TUTTI_EXPOSED) targets->exposed = data;
  if (room != TUTTI_EXPOSED) targets->n = 1;
  targets->posted = room == TUTTI_POSTED;
  for (size_t i = lane.next + 1; targets->posted && i < lane.steps.size() && targets->n < kMaxDestinations - 1; i++) {
    const BoundStep& step = lane.steps[i];
    void** const at = &targets->at[targets->n];
    if (!sends_again(first, step) || step.send->acquire(nullptr, lowered.bytes, TUTTI_IF_POSTED, at) != TUTTI_POSTED)
      break;
    targets->n++;
  }
  return true;
}

void Run::send(const BoundStep& step, uint32_t bytes, const void* exposed) {
  const auto tag = std::bit_cast<tuttiTag>(tag_of(step));
  if (step.send->publish(exposed, bytes, tag) != 0) return;
  memcpy(step.send->acquire(bytes), exposed, bytes);
  step.send->publish(bytes, tag);
}

// Exposed memory can be read until the message is released.
bool Run::read_messages(const LoweredStep& step, bool* any_exposed) {
  for (size_t i = 0; i < step.recvs.size(); i++) {
    const void* data = program_.workspace.messages[i].data;
    if (data == nullptr) {
      *any_exposed = true;
      auto exposed = step.recvs[i]->read();
      if (!exposed) return fail(std::move(exposed).error());
      data = exposed.value();
    }
    program_.workspace.bases[kMessages + i] = as_base(data);
  }
  return true;
}

// False when a message could not be read.
bool Run::compute(const LoweredStep& step, const Targets& targets) {
  bool any_exposed = false;
  if (!read_messages(step, &any_exposed)) return false;
  const uint64_t all = step.reduce.elems, piece = combiner_.piece_elems(step);
  for (uint64_t at = 0; at < all; at += piece) combiner_.combine(step, at, std::min(piece, all - at), targets);
  if (!any_exposed) return true;
  // If this rank was stopped in between, the owner may not have waited: then it may have read anything.
  for (Link* link : step.recvs)
    if (auto well = is_well(*link); !well) return fail(std::move(well).error());
  return true;
}

void Run::disagree(const Call& mine, int peer, const Call& theirs) {
  error_ = mismatch_error(operation_.rank, mine, peer, theirs, recorder_);
  const Call same = counterpart(mine, theirs, recorder_);
  if (same.sequence == theirs.sequence && !is_point_to_point(theirs) && !is_same_request(same, theirs))
    differs_in_ = theirs.sequence;
  // The peer, which is ahead, knows what it has called in the place of this rank's tuttiAlltoAllv.
  if (is_point_to_point(theirs) && mine.blocks < theirs.blocks) differs_in_ = mine.blocks;
}

bool Run::accept_messages(const BoundStep& step, uint32_t expected_bytes) {
  for (size_t i = 0; i < step.recvs.size(); i++) {
    const tuttiMessage& message = program_.workspace.messages[i];
    const int peer = step.recvs[i]->peer();
    if (memcmp(&message.tag, tag_of(step).data(), sizeof message.tag) != 0) {
      const Call mine = from_tag(tag_of(step)), theirs = from_tag(std::bit_cast<TagWords>(message.tag));
      if (!may_meet(mine, theirs)) {
        disagree(mine, peer, theirs);
        return false;
      }
    }
    if (message.bytes != expected_bytes)
      return fail({Code::kInternalError,
                   format("rank %d sent a chunk of %u bytes where %u were expected in %s", peer, message.bytes,
                          expected_bytes, to_text(operation_.call).c_str()),
                   peer});
  }
  return true;
}

void Run::revoke() {
  for (BoundLane& lane : program_.lanes)
    if (!lane.done())
      for (const BoundStep& step : lane.steps)
        for (Link* link : step.recvs) link->revoke();
  for (Link* link : program_.sends) link->revoke();
}

bool Run::check_stray(Link& link) {
  tuttiTransportError ignored;
  link.poll(&ignored);
  tuttiMessage message;
  if (!link.peek(&message)) return false;
  const auto words = std::bit_cast<TagWords>(message.tag);
  if (words == tag_ || words[0] > tag_[0]) return false;  // of this operation, or of one that this rank has not begun
  // Point-to-point messages may wait for their receive, and a receive for its sender's earlier operations.
  if (is_point_to_point(from_tag(words)) || is_point_to_point(operation_.call)) return false;
  disagree(operation_.call, link.peer(), from_tag(words));
  return true;
}

}  // namespace tutti
