// This header: the lanes of the ranks that are simulated: at which step each is, and the links that its steps use. One
// thread.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "exec/chunks.h"
#include "tools/sim/traffic.h"

namespace tutti::sim {

// The links that a pattern of steps uses, and what its sums cost.
struct Ends {
  int recv = -1, send = -1;   // links; recv may be kEveryone: then LaneRun::everyone
  double summed_byte_ns = 0;  // for all values that are added up
};

struct LaneRun {
  int rank = 0, index = 0;
  Steps steps;
  std::vector<Ends> ends;
  std::vector<int> everyone;  // links, if some step receives from all
  uint64_t round = 0;
  Steps::const_iterator next;
  double waits_since_ns = 0, works_since_ns = 0;
  bool is_at_work = false;  // its step runs, or waits for a CPU
  bool has_sent = false;    // before its step is done

  const Ends& now() const { return ends[next.pattern()]; }
  // The links that its step receives from.
  std::span<const int> recvs() const {
    const Ends& step = now();
    return step.recv == kEveryone ? everyone : std::span<const int>(&step.recv, step.recv >= 0);
  }
  void go_on() {
    if (++next != steps.end()) return;
    next = steps.begin();
    round++;
  }
};

class Lanes {
 public:
  Lanes(const Network& network, const Job& job, Traffic* traffic);
  // Connects the first ranks' lanes. kInternalError: the schedules do not fit together; kInvalidUsage: too many steps.
  Result<void> connect(int n_first);

  LaneRun& operator[](int lane) { return lanes_[static_cast<size_t>(lane)]; }
  // A rank's lanes: from first() up to, but not including, end().
  int first(int rank) const { return firsts_[static_cast<size_t>(rank)]; }
  int end(int rank) const { return first(rank + 1); }
  int count(int rank) const { return end(rank) - first(rank); }

  bool is_done(const LaneRun& lane) const { return lane.round == rounds_; }
  uint64_t bytes_of(const LaneRun& lane) const;
  // Whether one lane per rank does all in one round, in messages that are not exposed.
  bool are_small() const;

 private:
  Result<void> connect_rank(const Schedule& schedule);
  Result<Ends> ends_of(LaneRun& lane, const Schedule& schedule, const Step& step, uint32_t channel);
  Result<int> attach(const LaneRun& lane, int peer, uint32_t channel, bool sends);

  const Network& network_;
  const Job& job_;
  Traffic& traffic_;
  const MessageSizes sizes_;
  uint32_t n_chunks_ = 0;
  uint64_t rounds_ = 1;
  std::vector<LaneRun> lanes_;
  std::vector<int> firsts_{0};               // by rank: its first lane; and the end
  std::unordered_map<uint64_t, int> found_;  // links
};

}  // namespace tutti::sim
