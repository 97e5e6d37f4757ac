// plan: which algorithm an operation takes, and with how many chunks. All ranks of a group decide alike, because they
// decide from what they agreed on at creation. Pure; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "debug/call.h"
#include "schedule/schedule.h"

namespace tutti {

Result<Algo> parse_algo(const std::string& name);  // "" is kAuto; kInvalidUsage lists the names

class Planner {
 public:
  // `forced` other than kAuto is taken whatever the size.
  // Deterministic: reductions add in the order of ranks, by an algorithm that does so, and `forced` holds for the rest.
  Planner(int rank, int n_ranks, Algo forced, bool deterministic);

  Algo choose(Collective collective, uint64_t bytes) const;
  Schedule schedule(Collective collective, Algo algo, int root) const;
  // Ranks that any algorithm without a root exchanges messages with: connected from the start.
  std::vector<int> neighbours() const;

 private:
  int rank_;
  int n_ranks_;
  Algo forced_;
  bool deterministic_;
  std::vector<int> order_;  // of the ranks in rings and trees
};

}  // namespace tutti
