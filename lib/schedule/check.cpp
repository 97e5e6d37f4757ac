#include <algorithm>

#include "schedule/check_memory.h"
#include "schedule/text.h"

namespace tutti {
namespace {

// How the proof works. Every link has one sending and one receiving lane and every lane is sequential, so which steps
// can run never depends on the order in which lanes are tried: one execution shows deadlock or freedom from it for all.
// What may depend on the order is memory that two lanes of a rank share. If there is any, a second execution carries
// vector clocks along with the messages and demands that messages alone put those accesses in order.

Error wrong(std::string message) {
  return {.code = Code::kInternalError, .message = std::move(message)};
}

using Clock = std::vector<uint32_t>;  // per lane of all ranks: how many of its steps have certainly happened

struct Message {
  Value value;
  uint32_t round = 0, step = 0;  // where it was sent
};

struct Link {
  int from = 0, to = 0;
  uint32_t channel = 0;
  int sender = -1, receiver = -1;  // indices of lanes
  uint32_t head = 0, count = 0;    // of the messages in its slots
};

struct StepLinks {
  int recv = -1, send = -1;
};

struct LaneRun {
  int rank = 0, lane = 0;
  const Lane* plan = nullptr;
  size_t first_link = 0;  // of its steps' StepLinks
  uint32_t round = 0, step = 0, tick = 0;
  bool queued = true;
  Clock clock;
};

class Simulation {
 public:
  Simulation(std::span<const Schedule> schedules, const CheckOptions& options, GoalTable table, bool prove_order)
      : schedules_(schedules),
        options_(options),
        prove_order_(prove_order),
        memory_(schedules, options, std::move(table)),
        links_from_(schedules.size()) {}

  Result<void> run();
  bool lanes_share_memory() const { return lanes_share_memory_; }

 private:
  Result<void> connect();
  Result<void> connect_lane(LaneRun& lane);
  Result<int> attach(int lane, int peer, bool sends);
  int find_link(int from, int to, uint32_t channel);

  Result<void> run_lane(LaneRun& lane);
  const char* blocked_by(const LaneRun& lane) const;
  Result<void> perform(LaneRun& lane);
  Result<void> work(LaneRun& lane, const Step& step, int link, Value& value);
  Result<void> compute(LaneRun& lane, const Step& step, int link, Value& value);
  Result<void> read(LaneRun& lane, const Slice& slice, Value& value);
  Result<void> judge_completion(const Step& step, Value& value);
  Result<void> store(LaneRun& lane, const Slice& slice, const Value& value);
  Result<void> check_all_entered(const LaneRun& lane) const;
  Result<void> touch(LaneRun& lane, const Slice& slice, Cell& cell);
  Value receive(LaneRun& lane, int link);
  void send(LaneRun& lane, int link, const Value& value);
  void wake(int lane);

  Result<void> check_end() const;
  std::string deadlock_report() const;
  std::string place(const LaneRun& lane) const;
  int index_of(const LaneRun& lane) const { return static_cast<int>(&lane - lanes_.data()); }
  bool is_done(const LaneRun& lane) const { return lane.round == options_.rounds; }
  const Step& current(const LaneRun& lane) const { return lane.plan->steps[lane.step]; }
  const StepLinks& links_of(const LaneRun& lane) const { return step_links_[lane.first_link + lane.step]; }
  // Which of messages_ is the link's `nth` from its head.
  size_t slot(int link, uint32_t nth) const {
    const uint32_t index = links_[static_cast<size_t>(link)].head + nth;
    return static_cast<size_t>(link) * options_.slots + (index < options_.slots ? index : index - options_.slots);
  }

  std::span<const Schedule> schedules_;
  CheckOptions options_;
  bool prove_order_;
  bool lanes_share_memory_ = false;
  CheckMemory memory_;
  std::vector<LaneRun> lanes_;
  std::vector<StepLinks> step_links_;
  std::vector<Link> links_;
  std::vector<std::vector<int>> links_from_;  // by rank
  std::vector<Message> messages_;             // `slots` of each link
  std::vector<Clock> message_clocks_;
  std::vector<int> ready_;
};

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
  const int id = index_of(lane);
  Step before;  // a ring's lane has one peer on each side: most steps have the links of the one before
  StepLinks links;
  for (const Step& step : lane.plan->steps) {
    for (const bool sends : {false, true}) {
      const int peer = sends ? step.send : step.recv;
      if (peer == (sends ? before.send : before.recv)) continue;
      auto link = attach(id, peer, sends);
      if (!link) return wrong(place(lane) + ": " + link.error().message);
      (sends ? links.send : links.recv) = link.value();
    }
    step_links_.push_back(links);
    before = step;
    lane.step++;
  }
  lane.step = 0;
  if (lane.plan->steps.empty()) lane.round = options_.rounds;
  return {};
}

// ---- execution -----------------------------------------------------------------------------------------------------

Result<void> Simulation::run() {
  TUTTI_TRY(connect());
  for (size_t id = 0; id < lanes_.size(); id++) {
    ready_.push_back(static_cast<int>(id));
    if (prove_order_) lanes_[id].clock.resize(lanes_.size());
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
    if (++lane.step < lane.plan->steps.size()) continue;
    if (options_.goal == Goal::kBarrier) TUTTI_TRY(check_all_entered(lane));
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
  if (links.recv >= 0 && links_[static_cast<size_t>(links.recv)].count == 0) return "a message";
  if (links.send >= 0 && links_[static_cast<size_t>(links.send)].count == options_.slots) return "a free slot";
  return nullptr;
}

Result<void> Simulation::perform(LaneRun& lane) {
  const Step& step = current(lane);
  const StepLinks links = links_of(lane);
  lane.tick++;
  Value value;
  TUTTI_TRY(work(lane, step, links.recv, value));
  if (prove_order_) lane.clock[static_cast<size_t>(index_of(lane))] = lane.tick;
  if (links.send >= 0) send(lane, links.send, value);
  return {};
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
  TUTTI_TRY(compute(lane, step, link, value));
  TUTTI_TRY(judge_completion(step, value));
  if (step.store.buffer == Buffer::kNone && step.send < 0) return wrong("its value goes nowhere");
  if (step.store.buffer != Buffer::kNone) TUTTI_TRY(store(lane, step.store, value));
  return {};
}

Result<void> Simulation::compute(LaneRun& lane, const Step& step, int link, Value& value) {
  const bool has_before = step.before.buffer != Buffer::kNone, has_local = step.local.buffer != Buffer::kNone;
  if (link < 0 && !has_local) return wrong("it has no value");
  if (has_before && (link >= 0) == has_local) return wrong("it does not add two values");
  const uint32_t chunk = value.chunk;
  if (has_before) TUTTI_TRY(read(lane, step.before, value));
  if (link >= 0) {
    const Value message = receive(lane, link);
    if (message.chunk != chunk) {
      return wrong(format("the message is chunk %u (through all rounds), not %u", message.chunk, chunk));
    }
    value = value.sum == 0 ? message : add(value, message);
  }
  if (has_local) TUTTI_TRY(read(lane, step.local, value));
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
  const int n_sources = (step.before.buffer != Buffer::kNone) + (step.recv >= 0) + (step.local.buffer != Buffer::kNone);
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
  cell->value = value;
  cell->stored = true;
  return {};
}

// Accesses of two lanes to one slice must be ordered by messages, even if both only read: nothing needs more freedom.
Result<void> Simulation::touch(LaneRun& lane, const Slice& slice, Cell& cell) {
  if (slice.buffer == Buffer::kInput && !options_.in_place) return {};
  const int id = index_of(lane);
  if (cell.lane >= 0 && cell.lane != id) {
    lanes_share_memory_ = true;
    if (prove_order_ && lane.clock[static_cast<size_t>(cell.lane)] < cell.tick) {
      return wrong(format("lane %d also uses %s, in no certain order", lanes_[static_cast<size_t>(cell.lane)].lane,
                          slice_text(slice).c_str()));
    }
  }
  cell.lane = id;
  cell.tick = lane.tick;
  return {};
}

Value Simulation::receive(LaneRun& lane, int index) {
  Link& link = links_[static_cast<size_t>(index)];
  const size_t at = slot(index, 0);
  for (size_t i = 0; i < lane.clock.size(); i++) lane.clock[i] = std::max(lane.clock[i], message_clocks_[at][i]);
  if (++link.head == options_.slots) link.head = 0;
  link.count--;
  wake(link.sender);
  return messages_[at].value;
}

void Simulation::send(LaneRun& lane, int index, const Value& value) {
  Link& link = links_[static_cast<size_t>(index)];
  const size_t at = slot(index, link.count);
  messages_[at] = {value, lane.round, lane.step};
  if (prove_order_) message_clocks_[at] = lane.clock;
  link.count++;
  wake(link.receiver);
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
      const Step& step = current(lane);
      const bool receives = links_of(lane).recv >= 0 && links_[static_cast<size_t>(links_of(lane).recv)].count == 0;
      text += "\n  " + place(lane) + " waits for " + blocked_by(lane) +
              format(receives ? " from rank %d" : " to rank %d", receives ? step.recv : step.send);
    }
  }
  return text;
}

Result<void> check_shape(std::span<const Schedule> schedules, const CheckOptions& options) {
  if (schedules.empty()) return wrong("there are no schedules to check");
  if (options.slots == 0 || options.rounds == 0) return wrong("a check needs at least one slot and one round");
  const int n_ranks = static_cast<int>(schedules.size());
  for (int rank = 0; rank < n_ranks; rank++) {
    const Schedule& schedule = schedules[static_cast<size_t>(rank)];
    if (schedule.rank != rank || schedule.n_ranks != n_ranks || schedule.n_chunks != schedules[0].n_chunks ||
        schedule.n_chunks == 0) {
      return wrong(format("rank %d: schedule %d is for rank %d of %d with %u chunks, not for rank %d of %d with %u",
                          rank, rank, schedule.rank, schedule.n_ranks, schedule.n_chunks, rank, n_ranks,
                          schedules[0].n_chunks));
    }
    if (options.goal == Goal::kBarrier && n_ranks > 1 && schedule.lanes.size() != 1) {
      return wrong(format("rank %d: a barrier is one lane", rank));
    }
  }
  return {};
}

Result<void> check_blocks(std::span<const Schedule> schedules, const CheckOptions& options, const GoalTable& table) {
  uint64_t most_blocks = table.logical_blocks;
  for (const Schedule& schedule : schedules) {
    const RankBlocks& blocks = table.ranks[static_cast<size_t>(schedule.rank)];
    most_blocks = std::max({most_blocks, uint64_t{blocks.input.size()}, uint64_t{blocks.output.size()}});
    if (schedule.input_blocks == blocks.input.size() && schedule.output_blocks == blocks.output.size()) continue;
    return wrong(format("rank %d: the schedule has %u input and %u output blocks, not %zu and %zu", schedule.rank,
                        schedule.input_blocks, schedule.output_blocks, blocks.input.size(), blocks.output.size()));
  }
  if (most_blocks * schedules[0].n_chunks * options.rounds > UINT32_MAX) return wrong("too many chunks in all rounds");
  return {};
}

}  // namespace

Result<void> check(std::span<const Schedule> schedules, const CheckOptions& options) {
  TUTTI_TRY(check_shape(schedules, options));
  TUTTI_TRY_ASSIGN(const GoalTable table, goal_table(static_cast<int>(schedules.size()), options));
  TUTTI_TRY(check_blocks(schedules, options, table));
  bool prove_order = options.goal == Goal::kBarrier;
  if (!prove_order) {
    Simulation simulation(schedules, options, table, false);
    TUTTI_TRY(simulation.run());
    prove_order = simulation.lanes_share_memory();
  }
  if (!prove_order) return {};
  return Simulation(schedules, options, table, true).run();
}

}  // namespace tutti
