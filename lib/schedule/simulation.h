// One execution of the schedules of all ranks, with real slot credits. See check() in schedule.h for what it proves.
#pragma once

#include "schedule/alike.h"
#include "schedule/check_links.h"

namespace tutti::checker {

// How the proof works. Every link has one sending and one receiving lane and every lane is sequential, so which steps
// can run never depends on the order in which lanes are tried: one execution shows deadlock or freedom from it for all.
// What may depend on the order is memory that two lanes of a rank share, or that is exposed to a receiver. So messages
// carry vector clocks, and messages alone must establish happens-before between those accesses.

struct StepLinks {
  int recv = -1, send = -1;  // recv may be kEveryone: then LaneRun::everyone
  uint32_t moved = 0;        // how many times the first rank like the sender is moved to be the sender
};

struct LaneRun {
  int rank = 0, lane = 0, id = 0;  // lane: index within the rank; id: index among all
  const Lane* plan = nullptr;
  std::vector<StepLinks> links;  // by pattern
  Steps::const_iterator at;
  uint32_t round = 0, tick = 0;
  bool queued = true;
  std::vector<Placeable> placeable;  // if the collective reduces
  size_t next_placeable = 0;
  int only_recv = -1;         // the only link that it receives from; kEveryone: several
  std::vector<int> everyone;  // links from all ranks if some step receives from everyone; -1 for this rank's own
  Clock clock;
};
inline const StepLinks& links_of(const LaneRun& lane) {
  return lane.links[lane.at.pattern()];
}

// The lanes of the first ranks, each for all ranks that do the same, and their execution: once connected, each runs as
// far as messages and free slots allow.
class Simulation {
 public:
  // Without memory only lanes, links and messages are simulated. With it, so is what is in the memory of all ranks, and
  // no rank stands for another.
  Simulation(std::span<const Schedule> schedules, const CheckOptions& options, const Symmetry& moves,
             std::optional<CheckMemory> memory)
      : schedules_(schedules),
        options_(options),
        moves_(moves),
        memory_(std::move(memory)),
        links_(schedules.size(), options.slots) {}

  // An error if some lane does not finish, or messages are left over.
  Result<void> run();

 private:
  Result<void> connect();
  Result<void> connect_lane(LaneRun& lane);
  Result<StepLinks> attach(LaneRun& lane, const Step& step);
  Result<int> attach(const LaneRun& lane, int peer, bool sends);
  Result<void> run_lane(LaneRun& lane);
  const char* blocked_by(const LaneRun& lane) const;
  void wake(int lane);
  Result<void> check_end() const;
  std::string deadlock_report() const;
  bool is_done(const LaneRun& lane) const { return lane.round == options_.rounds; }

  Result<void> perform(LaneRun& lane);
  Result<void> end_round(const LaneRun& lane) const;
  Result<void> work(LaneRun& lane, const Step& step, int link, Value& value);
  Result<void> compute(LaneRun& lane, const Step& step, int link, Value& value);
  Result<void> add_message(LaneRun& lane, int link, uint32_t chunk, Value& value);
  Result<void> read(LaneRun& lane, const Slice& slice, Value& value);
  Result<void> store(LaneRun& lane, const Slice& slice, const Value& value);
  Result<void> touch(LaneRun& lane, const Slice& slice, Cell& cell);
  Result<void> check_placed(LaneRun& lane, const Step& step, int link);
  Result<void> check_returned(const LaneRun& lane, Cell& cell) const;
  Message receive(LaneRun& lane, int link);
  Result<void> send(LaneRun& lane, int link, const Step& step, const Value& value);

  std::span<const Schedule> schedules_;
  CheckOptions options_;
  Symmetry moves_;
  std::optional<CheckMemory> memory_;
  Links links_;
  std::vector<LaneRun> lanes_;
  std::vector<int> ready_;
};

}  // namespace tutti::checker
