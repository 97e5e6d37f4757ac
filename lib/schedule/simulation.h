// One execution of the schedules of all ranks, with real slot credits. See check() in schedule.h for what it proves.
#pragma once

#include "schedule/check_memory.h"
#include "schedule/clock.h"

namespace tutti::checker {

// How the proof works. Every link has one sending and one receiving lane and every lane is sequential, so which steps
// can run never depends on the order in which lanes are tried: one execution shows deadlock or freedom from it for all.
// What may depend on the order is memory that two lanes of a rank share, or that is exposed to a receiver. If there is
// any, an execution carries vector clocks along with the messages and demands that messages alone put those accesses in
// order.

struct Message {
  Value value;
  uint32_t round = 0, step = 0;  // where it was sent
  Cell* exposed = nullptr;       // where its value still lies, if the receiver may read it there
};

struct Link {
  int from = 0, to = 0;
  uint32_t channel = 0;
  int sender = -1, receiver = -1;  // indices of lanes
  uint32_t head = 0, count = 0;    // of the messages in its slots
};

struct StepLinks {
  int recv = -1, send = -1;  // recv may be kEveryone: then those of the lane
};

struct LaneRun {
  int rank = 0, lane = 0;
  const Lane* plan = nullptr;
  size_t first_link = 0;  // of its patterns' StepLinks
  Steps::const_iterator at;
  uint32_t round = 0, step = 0, tick = 0;
  bool queued = true;
  std::vector<Placeable> placeable;  // if the collective reduces
  size_t next_placeable = 0;
  int heard = -1;             // the only link that it receives from; kEveryone: there are several
  std::vector<int> everyone;  // links from all ranks if some step receives from everyone; -1 for this rank's own
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
  Result<void> attach_everyone(LaneRun& lane);
  int find_link(int from, int to, uint32_t channel);

  Result<void> run_lane(LaneRun& lane);
  const char* blocked_by(const LaneRun& lane) const;
  Result<void> perform(LaneRun& lane);
  Result<void> work(LaneRun& lane, const Step& step, int link, Value& value);
  Result<void> compute(LaneRun& lane, const Step& step, int link, Value& value);
  Result<void> fold(LaneRun& lane, const Step& step, Value& value);
  Result<void> add_message(LaneRun& lane, int link, uint32_t chunk, Value& value);
  Result<void> read(LaneRun& lane, const Slice& slice, Value& value);
  Result<void> judge_completion(const Step& step, Value& value);
  Result<void> store(LaneRun& lane, const Slice& slice, const Value& value);
  Result<void> check_all_entered(const LaneRun& lane) const;
  Result<void> touch(LaneRun& lane, const Slice& slice, Cell& cell);
  Result<void> check_placed(LaneRun& lane, const Step& step, int link);
  Result<void> check_returned(const LaneRun& lane, Cell& cell) const;
  Value receive(LaneRun& lane, int link);
  Result<void> send(LaneRun& lane, int link, const Step& step, const Value& value);
  Slice exposed_slice(const LaneRun& lane, const Step& step) const;
  void wake(int lane);

  Result<void> check_end() const;
  std::string deadlock_report() const;
  std::string place(const LaneRun& lane) const;
  int index_of(const LaneRun& lane) const { return static_cast<int>(&lane - lanes_.data()); }
  bool is_done(const LaneRun& lane) const { return lane.round == options_.rounds; }
  static Step current(const LaneRun& lane) { return *lane.at; }
  const StepLinks& links_of(const LaneRun& lane) const { return step_links_[lane.first_link + lane.at.pattern()]; }
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

}  // namespace tutti::checker
