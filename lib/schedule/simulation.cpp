#include "schedule/simulation.h"

#include <algorithm>

namespace tutti::checker {
namespace {

// The tick of a receiver that has not yet read what was exposed to it: no clock has reached it.
constexpr uint32_t kNotYet = UINT32_MAX;

std::string place(const LaneRun& lane) {
  return format("rank %d lane %d round %u step %u (", lane.rank, lane.lane, lane.round, lane.at.index()) +
         step_text(*lane.at) + ")";
}

// The slice where the value that a step sends remains unchanged, if it may be exposed.
Slice exposed_slice(const Schedule& schedule, const Step& step) {
  if (!schedule.may_expose) return {};
  if (step.store.buffer == Buffer::kOutput) return step.store;
  const bool is_copy = step.recv == -1 && step.before.buffer == Buffer::kNone;
  return is_copy && step.local.buffer != Buffer::kScratch ? step.local : Slice{};
}

}  // namespace

// ---- links ---------------------------------------------------------------------------------------------------------

Result<void> Simulation::connect() {
  for (const Schedule& schedule : schedules_.first(static_cast<size_t>(moves_.period()))) {
    for (size_t l = 0; l < schedule.lanes.size(); l++) {
      const int id = static_cast<int>(lanes_.size());
      lanes_.push_back({.rank = schedule.rank, .lane = static_cast<int>(l), .id = id, .plan = &schedule.lanes[l]});
      TUTTI_TRY(connect_lane(lanes_.back()));
    }
  }
  return {};
}

Result<void> Simulation::connect_lane(LaneRun& lane) {
  const Steps& steps = lane.plan->steps;
  lane.links.reserve(steps.patterns().size());
  for (uint32_t pattern = 0; pattern < steps.patterns().size(); pattern++) {
    lane.at = steps.first_of(pattern);
    const auto links = attach(lane, steps.patterns()[pattern]);
    if (!links) return wrong(place(lane) + ": " + links.error().message);
    lane.links.push_back(links.value());
    const int recv = links.value().recv;
    if (recv != -1) lane.only_recv = lane.only_recv == -1 || lane.only_recv == recv ? recv : kEveryone;
  }
  lane.at = steps.begin();
  if (steps.empty()) lane.round = options_.rounds;
  return {};
}

Result<StepLinks> Simulation::attach(LaneRun& lane, const Step& step) {
  StepLinks links;
  if (step.recv >= 0) links.moved = moves_.times(step.recv);
  TUTTI_TRY_ASSIGN(links.recv, attach(lane, step.recv, false));
  if (step.recv == kEveryone) links.recv = kEveryone;
  for (int peer = 0; step.recv == kEveryone && lane.everyone.size() < schedules_.size(); peer++) {
    TUTTI_TRY_ASSIGN(const int link, attach(lane, peer == lane.rank ? -1 : peer, false));
    lane.everyone.push_back(link);
  }
  TUTTI_TRY_ASSIGN(links.send, attach(lane, step.send, true));
  return links;
}

// The link to `peer`, or the first ranks' link that is like the one from `peer`; no other lane may use the same end.
Result<int> Simulation::attach(const LaneRun& lane, int peer, bool sends) {
  if (peer < 0) return -1;
  if (peer >= static_cast<int>(schedules_.size()) || peer == lane.rank)
    return wrong(format("%d is not a peer of this rank", peer));
  const uint32_t channel = lane.plan->channel;
  const int first = moves_.first(peer), me = moves_.move_back(lane.rank, moves_.times(peer));
  const auto [link, owner] = sends ? links_.attach(lane.rank, peer, channel, &Link::sender, lane.id)
                                   : links_.attach(first, me, channel, &Link::receiver, lane.id);
  if (owner == lane.id) return link;
  return wrong(format("lane %d already %s rank %d on channel %u", lanes_[static_cast<size_t>(owner)].lane,
                      sends ? "sends to" : "receives from", peer, channel));
}

// ---- execution -----------------------------------------------------------------------------------------------------

Result<void> Simulation::run() {
  TUTTI_TRY(connect());
  for (LaneRun& lane : lanes_) {
    ready_.push_back(lane.id);
    if (!memory_) continue;
    lane.clock = Clock(lanes_.size());
    const Steps& steps = lane.plan->steps;
    if (memory_->reduces()) lane.placeable = placeable_messages(std::vector<Step>(steps.begin(), steps.end()));
  }
  while (!ready_.empty()) {
    LaneRun& lane = lanes_[static_cast<size_t>(ready_.back())];
    ready_.pop_back();
    lane.queued = false;
    TUTTI_TRY(run_lane(lane));
  }
  TUTTI_TRY(check_end());
  return memory_ ? memory_->check_outputs() : Result<void>();
}

void Simulation::wake(int lane) {
  if (lane < 0 || lanes_[static_cast<size_t>(lane)].queued) return;
  lanes_[static_cast<size_t>(lane)].queued = true;
  ready_.push_back(lane);
}

Result<void> Simulation::run_lane(LaneRun& lane) {
  while (!is_done(lane) && blocked_by(lane) == nullptr) {
    if (auto done = perform(lane); !done) return wrong(place(lane) + ": " + done.error().message);
    if (++lane.at != lane.plan->steps.end()) continue;
    TUTTI_TRY(end_round(lane));
    lane.at = lane.plan->steps.begin();
    lane.round++;
  }
  return {};
}

const char* Simulation::blocked_by(const LaneRun& lane) const {
  const StepLinks& links = links_of(lane);
  const auto is_empty = [&](int link) { return link >= 0 && links_.is_empty(link); };
  if (links.recv == kEveryone && std::any_of(lane.everyone.begin(), lane.everyone.end(), is_empty))
    return "messages of all";
  if (is_empty(links.recv)) return "a message";
  if (links.send >= 0 && links_.is_full(links.send)) return "a free slot";
  return nullptr;
}

Result<void> Simulation::check_end() const {
  if (!std::all_of(lanes_.begin(), lanes_.end(), [&](const LaneRun& lane) { return is_done(lane); }))
    return wrong(deadlock_report());
  for (const Link& link : links_.all()) {
    if (link.count == 0) continue;
    const Message& first = links_.front(static_cast<int>(&link - links_.all().data()));
    const LaneRun& sender = lanes_[static_cast<size_t>(link.sender)];
    return wrong(format("rank %d lane %d round %u step %u: rank %d never receives what it sends on channel %u",
                        link.from, sender.lane, first.round, first.step, link.to, link.channel));
  }
  return {};
}

std::string Simulation::deadlock_report() const {
  constexpr int kMaxLines = 256;
  std::string text = format("deadlock with %u slots:", options_.slots);
  int n_lines = 0;
  for (const LaneRun& lane : lanes_) {
    if (n_lines++ == kMaxLines) return text + "\n  ...";
    if (is_done(lane)) {
      text += format("\n  rank %d lane %d is done", lane.rank, lane.lane);
    } else {
      const Step step = *lane.at;
      const int recv = links_of(lane).recv;
      const bool receives = recv >= 0 && links_.is_empty(recv);
      text += "\n  " + place(lane) + " waits for " + blocked_by(lane);
      if (recv != kEveryone)
        text += format(receives ? " from rank %d" : " to rank %d", receives ? step.recv : step.send);
    }
  }
  return text;
}

// ---- steps ---------------------------------------------------------------------------------------------------------

// A barrier has one lane per rank. Its clock knows of a step of this round in another lane only if a chain of messages
// sent after that lane entered the barrier has led here.
Result<void> Simulation::end_round(const LaneRun& lane) const {
  if (options_.goal != Goal::kBarrier) return {};
  for (const LaneRun& other : lanes_) {
    if (lane.clock[static_cast<size_t>(other.id)] > lane.round * other.plan->steps.size()) continue;
    return wrong(format("rank %d leaves the barrier in round %u without knowing that rank %d has entered it", lane.rank,
                        lane.round, other.rank));
  }
  return {};
}

Result<void> Simulation::perform(LaneRun& lane) {
  const Step step = *lane.at;
  const StepLinks links = links_of(lane);
  Value value{.chunk = step.chunk};
  if (memory_) {
    lane.tick++;
    TUTTI_TRY(work(lane, step, links.recv, value));
    lane.clock.set(static_cast<size_t>(lane.id), lane.tick);
  } else if (links.recv >= 0) {
    const Message message = receive(lane, links.recv);
    const uint32_t chunk = moves_.move_chunk(message.value.chunk, links.moved);
    if (chunk != step.chunk || message.round != lane.round)
      return wrong(format("the message is chunk %u of round %u", chunk, message.round));
  }
  return links.send >= 0 ? send(lane, links.send, step, value) : Result<void>();
}

// All of a step except its send, with memory.
Result<void> Simulation::work(LaneRun& lane, const Step& step, int link, Value& value) {
  if (options_.goal == Goal::kBarrier) {
    const bool has_slice =
        step.before.buffer != Buffer::kNone || step.local.buffer != Buffer::kNone || step.store.buffer != Buffer::kNone;
    if (has_slice || step.chunk != 0 || step.completes) return wrong("a barrier has no data");
    if (link >= 0) value = receive(lane, link).value;
    return {};
  }
  const auto chunk = memory_->chunk_of(lane.rank, step, lane.round);
  if (!chunk) return wrong(format("there is no chunk %u", step.chunk));
  value.chunk = *chunk;
  TUTTI_TRY(check_placed(lane, step, link));
  TUTTI_TRY(compute(lane, step, link, value));
  TUTTI_TRY(memory_->judge_completion(step, value));
  if (step.store.buffer == Buffer::kNone && step.send < 0) return wrong("its value goes nowhere");
  if (step.store.buffer != Buffer::kNone) TUTTI_TRY(store(lane, step.store, value));
  return {};
}

Result<void> Simulation::compute(LaneRun& lane, const Step& step, int link, Value& value) {
  const bool has_before = step.before.buffer != Buffer::kNone, has_local = step.local.buffer != Buffer::kNone;
  const uint32_t chunk = value.chunk;
  if (link == kEveryone && has_before) return wrong("it has two values of its own");
  if (link == kEveryone) {
    for (const int each : lane.everyone) {
      if (each >= 0) TUTTI_TRY(add_message(lane, each, chunk, value));
      if (each < 0 && has_local) TUTTI_TRY(read(lane, step.local, value));
    }
    return {};
  }
  if (link < 0 && !has_local) return wrong("it has no value");
  if (has_before && (link >= 0) == has_local) return wrong("it does not add two values");
  if (has_before) TUTTI_TRY(read(lane, step.before, value));
  if (link >= 0) TUTTI_TRY(add_message(lane, link, chunk, value));
  if (has_local) TUTTI_TRY(read(lane, step.local, value));
  return {};
}

Result<void> Simulation::add_message(LaneRun& lane, int link, uint32_t chunk, Value& value) {
  const Value message = receive(lane, link).value;
  if (message.chunk != chunk)
    return wrong(format("the message is chunk %u (through all rounds), not %u", message.chunk, chunk));
  value = value.sum == 0 ? message : add(value, message);
  return {};
}

// Adds the content of `slice` to the value, or makes it the value if there is none yet.
Result<void> Simulation::read(LaneRun& lane, const Slice& slice, Value& value) {
  TUTTI_TRY_ASSIGN(Cell * cell, memory_->find(lane.rank, slice, lane.round));
  TUTTI_TRY(touch(lane, slice, *cell));
  TUTTI_TRY(memory_->may_read(lane.rank, slice, *cell));
  if (value.chunk != cell->value.chunk)
    return wrong(slice_text(slice) +
                 format(" is chunk %u (through all rounds), not %u", cell->value.chunk, value.chunk));
  value = value.sum == 0 ? cell->value : add(value, cell->value);
  return {};
}

Result<void> Simulation::store(LaneRun& lane, const Slice& slice, const Value& value) {
  if (slice.buffer == Buffer::kInput) return wrong("it stores to the input");
  TUTTI_TRY_ASSIGN(Cell * cell, memory_->find(lane.rank, slice, lane.round));
  TUTTI_TRY(touch(lane, slice, *cell));
  if (slice.buffer == Buffer::kOutput) {
    const uint32_t chunk = memory_->output_chunk(lane.rank, slice.chunk, lane.round);
    if (value.chunk != chunk)
      return wrong(format("the value is chunk %u (through all rounds), not %u", value.chunk, chunk));
  }
  // In place, copying a value onto itself changes nothing.
  const bool same =
      cell->value.sum == value.sum && cell->value.order == value.order && cell->value.chunk == value.chunk;
  if (!same) TUTTI_TRY(check_returned(lane, *cell));
  cell->value = value;
  cell->stored = true;
  return {};
}

// Accesses of two lanes to one slice must be ordered by messages, even two reads: no schedule needs more freedom.
Result<void> Simulation::touch(LaneRun& lane, const Slice& slice, Cell& cell) {
  if (slice.buffer == Buffer::kInput && !options_.in_place) return {};
  const bool is_anothers = cell.last.lane >= 0 && cell.last.lane != lane.id;
  if (is_anothers && lane.clock[static_cast<size_t>(cell.last.lane)] < cell.last.tick)
    return wrong(format("lane %d also uses %s, in no certain order", lanes_[static_cast<size_t>(cell.last.lane)].lane,
                        slice_text(slice).c_str()));
  cell.last = {lane.id, lane.tick};
  return {};
}

// The sender may have written this message to its destination when it sent it, if this lane had then reached the step
// `from` (see Placeable). So every use of that memory must come before that step, or be known to the sender as over.
Result<void> Simulation::check_placed(LaneRun& lane, const Step& step, int link) {
  if (lane.placeable.empty()) return {};
  const Placeable& placeable = lane.placeable[lane.next_placeable];
  if (placeable.step != lane.at.index()) return {};
  if (++lane.next_placeable == lane.placeable.size()) lane.next_placeable = 0;
  TUTTI_TRY_ASSIGN(const Cell* cell, memory_->find(lane.rank, step.store, lane.round));
  const Clock& sender = links_.front(link).clock;
  const auto knows = [&](const Moment& use) {
    return use.lane < 0 || sender[static_cast<size_t>(use.lane)] >= use.tick;
  };
  const bool before = cell->last.lane == lane.id && cell->last.tick < lane.tick - (placeable.step - placeable.from);
  if (!before && !knows(cell->last)) return wrong("its message may overwrite what this rank still uses");
  for (const Moment& reader : cell->readers)
    if (!knows(reader))
      return wrong(format("its message may overwrite what rank %d may still be reading",
                          lanes_[static_cast<size_t>(reader.lane)].rank));
  return {};
}

// This lane must know from messages that every receiver that the cell was exposed to has read it.
Result<void> Simulation::check_returned(const LaneRun& lane, Cell& cell) const {
  for (const Moment& reader : cell.readers) {
    if (lane.clock[static_cast<size_t>(reader.lane)] >= reader.tick) continue;
    return wrong(
        format("it overwrites what rank %d may still be reading", lanes_[static_cast<size_t>(reader.lane)].rank));
  }
  cell.readers.clear();
  return {};
}

// An exposed message may be read at any time until it is received: nothing can order that read before a store.
Message Simulation::receive(LaneRun& lane, int index) {
  Message message = links_.pop(index);
  wake(links_[index].sender);
  // A message's clock includes those of all earlier messages on its link.
  if (lane.only_recv == index)
    lane.clock = std::move(message.clock);
  else
    lane.clock.learn(message.clock);
  if (message.exposed != nullptr) {
    // Its tick was kNotYet until now.
    for (Moment& reader : message.exposed->readers)
      if (reader.lane == lane.id && reader.tick == kNotYet) {
        reader.tick = lane.tick;
        break;
      }
  }
  return message;
}

Result<void> Simulation::send(LaneRun& lane, int index, const Step& step, const Value& value) {
  Message message{.value = value, .round = lane.round, .step = lane.at.index(), .clock = lane.clock};
  const Slice slice = exposed_slice(schedules_[static_cast<size_t>(lane.rank)], step);
  const int receiver = links_[index].receiver;  // -1: nobody reads it, which is an error later
  if (memory_ && slice.buffer != Buffer::kNone && receiver >= 0) {
    TUTTI_TRY_ASSIGN(message.exposed, memory_->find(lane.rank, slice, lane.round));
    message.exposed->readers.push_back({receiver, kNotYet});
  }
  links_.push(index, std::move(message));
  wake(receiver);
  return {};
}

}  // namespace tutti::checker
