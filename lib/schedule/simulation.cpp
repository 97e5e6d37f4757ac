#include "schedule/simulation.h"

#include <algorithm>

#include "schedule/text.h"

namespace tutti::checker {
namespace {

// The tick of a receiver that has not yet read what was exposed to it: nothing can have come after that.
constexpr uint32_t kNotYet = UINT32_MAX;

}  // namespace

// ---- links ---------------------------------------------------------------------------------------------------------

int Simulation::find_link(int from, int to, uint32_t channel) {
  std::vector<int>& candidates = links_from_[static_cast<size_t>(from)];
  for (int index : candidates) {
    const Link& link = links_[static_cast<size_t>(index)];
    if (link.to == to && link.channel == channel) return index;
  }
  candidates.push_back(static_cast<int>(links_.size()));
  links_.push_back({.from = from, .to = to, .channel = channel});
  return candidates.back();
}

// The link of `lane` to `peer`; it must be this lane's alone.
Result<int> Simulation::attach(int lane, int peer, bool sends) {
  const LaneRun& run = lanes_[static_cast<size_t>(lane)];
  if (peer < 0) return -1;
  if (peer >= static_cast<int>(schedules_.size()) || peer == run.rank) {
    return wrong(format("%d is not a peer of this rank", peer));
  }
  const uint32_t channel = run.plan->channel;
  const int index = sends ? find_link(run.rank, peer, channel) : find_link(peer, run.rank, channel);
  Link& link = links_[static_cast<size_t>(index)];
  int& owner = sends ? link.sender : link.receiver;
  if (owner >= 0 && owner != lane) {
    return wrong(format("lane %d already %s rank %d on channel %u", lanes_[static_cast<size_t>(owner)].lane,
                        sends ? "sends to" : "receives from", peer, channel));
  }
  owner = lane;
  return index;
}

Result<void> Simulation::connect() {
  for (const Schedule& schedule : schedules_) {
    for (size_t l = 0; l < schedule.lanes.size(); l++) {
      lanes_.push_back({.rank = schedule.rank, .lane = static_cast<int>(l), .plan = &schedule.lanes[l]});
      TUTTI_TRY(connect_lane(lanes_.back()));
    }
  }
  messages_.resize(links_.size() * options_.slots);
  if (prove_order_) message_clocks_.resize(messages_.size());
  return {};
}

Result<void> Simulation::connect_lane(LaneRun& lane) {
  lane.first_link = step_links_.size();
  const Steps& steps = lane.plan->steps;
  for (uint32_t pattern = 0; pattern < steps.patterns().size(); pattern++) {
    lane.at = steps.first_of(pattern);
    lane.step = lane.at.index();
    const Step& step = steps.patterns()[pattern].step;
    if (step.recv == kEveryone && lane.everyone.empty()) TUTTI_TRY(attach_everyone(lane));
    auto recv = step.recv == kEveryone ? Result<int>(kEveryone) : attach(index_of(lane), step.recv, false);
    if (!recv) return wrong(place(lane) + ": " + recv.error().message);
    auto send = attach(index_of(lane), step.send, true);
    if (!send) return wrong(place(lane) + ": " + send.error().message);
    step_links_.push_back({recv.value(), send.value()});
    if (recv.value() != -1) lane.heard = lane.heard == -1 || lane.heard == recv.value() ? recv.value() : kEveryone;
  }
  lane.at = steps.begin();
  lane.step = 0;
  if (prove_order_ && memory_.reduces())
    lane.placeable = placeable_messages(std::vector<Step>(steps.begin(), steps.end()));
  if (steps.empty()) lane.round = options_.rounds;
  return {};
}

Result<void> Simulation::attach_everyone(LaneRun& lane) {
  for (int peer = 0; peer < static_cast<int>(schedules_.size()); peer++) {
    auto link = attach(index_of(lane), peer == lane.rank ? -1 : peer, false);
    if (!link) return wrong(place(lane) + ": " + link.error().message);
    lane.everyone.push_back(link.value());
  }
  return {};
}

// ---- execution -----------------------------------------------------------------------------------------------------

Result<void> Simulation::run() {
  TUTTI_TRY(connect());
  for (size_t id = 0; id < lanes_.size(); id++) {
    ready_.push_back(static_cast<int>(id));
    if (prove_order_) lanes_[id].clock = Clock(lanes_.size());
  }
  while (!ready_.empty()) {
    LaneRun& lane = lanes_[static_cast<size_t>(ready_.back())];
    ready_.pop_back();
    lane.queued = false;
    TUTTI_TRY(run_lane(lane));
  }
  return check_end();
}

void Simulation::wake(int lane) {
  if (lane < 0 || lanes_[static_cast<size_t>(lane)].queued) return;
  lanes_[static_cast<size_t>(lane)].queued = true;
  ready_.push_back(lane);
}

Result<void> Simulation::run_lane(LaneRun& lane) {
  while (!is_done(lane) && blocked_by(lane) == nullptr) {
    if (auto done = perform(lane); !done) return wrong(place(lane) + ": " + done.error().message);
    lane.step++;
    if (++lane.at != lane.plan->steps.end()) continue;
    if (options_.goal == Goal::kBarrier) TUTTI_TRY(check_all_entered(lane));
    lane.at = lane.plan->steps.begin();
    lane.step = 0;
    lane.round++;
  }
  return {};
}

// A barrier has one lane per rank. Its clock knows of a step of this round in another lane only if a message from
// after that lane entered the barrier has led here.
Result<void> Simulation::check_all_entered(const LaneRun& lane) const {
  for (const LaneRun& other : lanes_) {
    if (lane.clock[static_cast<size_t>(index_of(other))] > lane.round * other.plan->steps.size()) continue;
    return wrong(format("rank %d leaves the barrier in round %u without knowing that rank %d has entered it", lane.rank,
                        lane.round, other.rank));
  }
  return {};
}

const char* Simulation::blocked_by(const LaneRun& lane) const {
  const StepLinks& links = links_of(lane);
  const auto is_empty = [&](int link) { return link >= 0 && links_[static_cast<size_t>(link)].count == 0; };
  if (links.recv == kEveryone && std::any_of(lane.everyone.begin(), lane.everyone.end(), is_empty))
    return "messages of all";
  if (is_empty(links.recv)) return "a message";
  if (links.send >= 0 && links_[static_cast<size_t>(links.send)].count == options_.slots) return "a free slot";
  return nullptr;
}

Result<void> Simulation::perform(LaneRun& lane) {
  const Step step = current(lane);
  const StepLinks links = links_of(lane);
  lane.tick++;
  Value value;
  TUTTI_TRY(work(lane, step, links.recv, value));
  if (prove_order_) lane.clock.set(static_cast<size_t>(index_of(lane)), lane.tick);
  return links.send >= 0 ? send(lane, links.send, step, value) : Result<void>();
}

// All of a step but its sending.
Result<void> Simulation::work(LaneRun& lane, const Step& step, int link, Value& value) {
  if (options_.goal == Goal::kBarrier) {
    const bool has_slice =
        step.before.buffer != Buffer::kNone || step.local.buffer != Buffer::kNone || step.store.buffer != Buffer::kNone;
    if (has_slice || step.chunk != 0 || step.completes) return wrong("a barrier has no data");
    if (link >= 0) value = receive(lane, link);
    return {};
  }
  const auto chunk = memory_.chunk_of(lane.rank, step, lane.round);
  if (!chunk) return wrong(format("there is no chunk %u", step.chunk));
  value.chunk = *chunk;
  TUTTI_TRY(check_placed(lane, step, link));
  TUTTI_TRY(compute(lane, step, link, value));
  TUTTI_TRY(judge_completion(step, value));
  if (step.store.buffer == Buffer::kNone && step.send < 0) return wrong("its value goes nowhere");
  if (step.store.buffer != Buffer::kNone) TUTTI_TRY(store(lane, step.store, value));
  return {};
}

Result<void> Simulation::compute(LaneRun& lane, const Step& step, int link, Value& value) {
  const bool has_before = step.before.buffer != Buffer::kNone, has_local = step.local.buffer != Buffer::kNone;
  if (link == kEveryone) return has_before ? wrong("it has two values of its own") : fold(lane, step, value);
  if (link < 0 && !has_local) return wrong("it has no value");
  if (has_before && (link >= 0) == has_local) return wrong("it does not add two values");
  const uint32_t chunk = value.chunk;
  if (has_before) TUTTI_TRY(read(lane, step.before, value));
  if (link >= 0) TUTTI_TRY(add_message(lane, link, chunk, value));
  if (has_local) TUTTI_TRY(read(lane, step.local, value));
  return {};
}

Result<void> Simulation::add_message(LaneRun& lane, int link, uint32_t chunk, Value& value) {
  const Value message = receive(lane, link);
  if (message.chunk != chunk)
    return wrong(format("the message is chunk %u (through all rounds), not %u", message.chunk, chunk));
  value = value.sum == 0 ? message : add(value, message);
  return {};
}

Result<void> Simulation::fold(LaneRun& lane, const Step& step, Value& value) {
  const uint32_t chunk = value.chunk;
  for (const int link : lane.everyone) {
    if (link >= 0) TUTTI_TRY(add_message(lane, link, chunk, value));
    if (link < 0 && step.local.buffer != Buffer::kNone) TUTTI_TRY(read(lane, step.local, value));
  }
  return {};
}

// Adds what is in `slice` to the value, if there is one already.
Result<void> Simulation::read(LaneRun& lane, const Slice& slice, Value& value) {
  TUTTI_TRY_ASSIGN(Cell * cell, memory_.find(lane.rank, slice, lane.round));
  TUTTI_TRY(touch(lane, slice, *cell));
  TUTTI_TRY(memory_.may_read(lane.rank, slice, *cell));
  if (value.chunk != cell->value.chunk) {
    return wrong(slice_text(slice) +
                 format(" is chunk %u (through all rounds), not %u", cell->value.chunk, value.chunk));
  }
  value = value.sum == 0 ? cell->value : add(value, cell->value);
  return {};
}

Result<void> Simulation::judge_completion(const Step& step, Value& value) {
  const int n_sources =
      (step.before.buffer != Buffer::kNone) + (step.recv != -1) + (step.local.buffer != Buffer::kNone);
  if (!memory_.reduces()) {
    if (n_sources > 1) return wrong("this collective reduces nothing");
    if (step.completes) return wrong("this collective completes no sum");
    return {};
  }
  const bool is_total = value.sum == memory_.total(value.chunk);
  if (step.completes && !is_total) return wrong("says complete, but the sum is not");
  if (step.completes && value.completed) return wrong("says complete, but another step did so before");
  if (is_total && !step.completes && !value.completed) return wrong("completes the sum without saying so");
  value.completed |= step.completes;
  return {};
}

Result<void> Simulation::store(LaneRun& lane, const Slice& slice, const Value& value) {
  if (slice.buffer == Buffer::kInput) return wrong("it stores to the input");
  TUTTI_TRY_ASSIGN(Cell * cell, memory_.find(lane.rank, slice, lane.round));
  TUTTI_TRY(touch(lane, slice, *cell));
  if (slice.buffer == Buffer::kOutput) {
    const uint32_t chunk = memory_.output_chunk(lane.rank, slice.chunk, lane.round);
    if (value.chunk != chunk) {
      return wrong(format("the value is chunk %u (through all rounds), not %u", value.chunk, chunk));
    }
  }
  // In place, a copy onto itself changes nothing.
  const bool same =
      cell->value.sum == value.sum && cell->value.order == value.order && cell->value.chunk == value.chunk;
  if (prove_order_ && !same) TUTTI_TRY(check_returned(lane, *cell));
  cell->value = value;
  cell->stored = true;
  return {};
}

// Accesses of two lanes to one slice must be ordered by messages, even if both only read: nothing needs more freedom.
Result<void> Simulation::touch(LaneRun& lane, const Slice& slice, Cell& cell) {
  if (slice.buffer == Buffer::kInput && !options_.in_place) return {};
  const int id = index_of(lane);
  if (cell.last.lane >= 0 && cell.last.lane != id) {
    lanes_share_memory_ = true;
    if (prove_order_ && lane.clock[static_cast<size_t>(cell.last.lane)] < cell.last.tick) {
      return wrong(format("lane %d also uses %s, in no certain order", lanes_[static_cast<size_t>(cell.last.lane)].lane,
                          slice_text(slice).c_str()));
    }
  }
  cell.last = {id, lane.tick};
  return {};
}

// The message that comes now may have been where it belongs since it was sent, if this lane had come to the step from
// which on it is expected there. So whoever used that memory after that must have been done before, and the sender
// know.
Result<void> Simulation::check_placed(LaneRun& lane, const Step& step, int link) {
  if (lane.placeable.empty()) return {};
  const Placeable& placeable = lane.placeable[lane.next_placeable];
  if (placeable.step != lane.step) return {};
  if (++lane.next_placeable == lane.placeable.size()) lane.next_placeable = 0;
  TUTTI_TRY_ASSIGN(const Cell* cell, memory_.find(lane.rank, step.store, lane.round));
  const Clock& sender = message_clocks_[slot(link, 0)];
  const auto knows = [&](const Moment& use) {
    return use.lane < 0 || sender[static_cast<size_t>(use.lane)] >= use.tick;
  };
  const bool before = cell->last.lane == index_of(lane) && cell->last.tick < lane.tick - (lane.step - placeable.from);
  if (!before && !knows(cell->last)) return wrong("its message may overwrite what this rank still uses");
  for (const Moment& reader : cell->readers)
    if (!knows(reader))
      return wrong(format("its message may overwrite what rank %d may still be reading",
                          lanes_[static_cast<size_t>(reader.lane)].rank));
  return {};
}

// Messages must have told this lane that whoever the cell was exposed to has read it.
Result<void> Simulation::check_returned(const LaneRun& lane, Cell& cell) const {
  for (const Moment& reader : cell.readers) {
    if (lane.clock[static_cast<size_t>(reader.lane)] >= reader.tick) continue;
    return wrong(
        format("it overwrites what rank %d may still be reading", lanes_[static_cast<size_t>(reader.lane)].rank));
  }
  cell.readers.clear();
  return {};
}

// What was sent and not received yet may be read any time: nothing can have ordered it before a store.
Value Simulation::receive(LaneRun& lane, int index) {
  Link& link = links_[static_cast<size_t>(index)];
  const size_t at = slot(index, 0);
  if (prove_order_) {
    // A message knows all that those before it on its link knew.
    Clock theirs = std::exchange(message_clocks_[at], {});
    if (lane.heard == index)
      lane.clock = std::move(theirs);
    else
      lane.clock.learn(theirs);
  }
  if (Cell* exposed = messages_[at].exposed) {
    // Sent with a tick that nobody can know of, until now.
    for (Moment& reader : exposed->readers)
      if (reader.lane == index_of(lane) && reader.tick == kNotYet) {
        reader.tick = lane.tick;
        break;
      }
  }
  if (++link.head == options_.slots) link.head = 0;
  link.count--;
  wake(link.sender);
  return messages_[at].value;
}

Result<void> Simulation::send(LaneRun& lane, int index, const Step& step, const Value& value) {
  Link& link = links_[static_cast<size_t>(index)];
  const size_t at = slot(index, link.count);
  messages_[at] = {value, lane.round, lane.step};
  if (prove_order_) {
    message_clocks_[at] = lane.clock;
    if (const Slice slice = exposed_slice(lane, step); slice.buffer != Buffer::kNone) {
      TUTTI_TRY_ASSIGN(messages_[at].exposed, memory_.find(lane.rank, slice, lane.round));
      messages_[at].exposed->readers.push_back({link.receiver, kNotYet});
    }
  }
  link.count++;
  wake(link.receiver);
  return {};
}

// Where the value that a step sends lies unchanged, if it may be exposed.
Slice Simulation::exposed_slice(const LaneRun& lane, const Step& step) const {
  if (!schedules_[static_cast<size_t>(lane.rank)].may_expose) return {};
  if (step.store.buffer == Buffer::kOutput) return step.store;
  const bool is_copy = step.recv == -1 && step.before.buffer == Buffer::kNone;
  return is_copy && step.local.buffer != Buffer::kScratch ? step.local : Slice{};
}

// ---- the end -------------------------------------------------------------------------------------------------------

Result<void> Simulation::check_end() const {
  if (!std::all_of(lanes_.begin(), lanes_.end(), [&](const LaneRun& lane) { return is_done(lane); })) {
    return wrong(deadlock_report());
  }
  for (const Link& link : links_) {
    if (link.count == 0) continue;
    const Message& first = messages_[slot(static_cast<int>(&link - links_.data()), 0)];
    const LaneRun& sender = lanes_[static_cast<size_t>(link.sender)];
    return wrong(format("rank %d lane %d round %u step %u: rank %d never receives what it sends on channel %u",
                        link.from, sender.lane, first.round, first.step, link.to, link.channel));
  }
  return memory_.check_outputs();
}

std::string Simulation::place(const LaneRun& lane) const {
  return format("rank %d lane %d round %u step %u (", lane.rank, lane.lane, lane.round, lane.step) +
         step_text(current(lane)) + ")";
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
      const Step step = current(lane);
      const int recv = links_of(lane).recv;
      const bool receives = recv >= 0 && links_[static_cast<size_t>(recv)].count == 0;
      text += "\n  " + place(lane) + " waits for " + blocked_by(lane);
      if (recv != kEveryone)
        text += format(receives ? " from rank %d" : " to rank %d", receives ? step.recv : step.send);
    }
  }
  return text;
}

}  // namespace tutti::checker
