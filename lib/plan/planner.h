// plan: which algorithm an operation takes, and with how many chunks. All ranks of a group decide alike, because they
// decide from the call and from what they agreed on at creation. Pure; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "debug/call.h"
#include "schedule/schedule.h"
#include "topology/layout.h"

namespace tutti {

Result<Algo> parse_algo(const std::string& name);  // "" is kAuto; kInvalidUsage lists the names

class Planner {
 public:
  // `forced` other than kAuto is taken whatever the size, but for sums that are to be made in one place: those of 16-
  // and 8-bit floats, to be rounded once, and in deterministic groups all, to be added up in the order of ranks.
  Planner(int rank, Layout layout, Algo forced, bool deterministic);

  // The algorithm of a call, which need not have one yet.
  Algo choose(const Call& call) const;
  Schedule schedule(Collective collective, Algo algo, int root) const;
  // Ranks that any algorithm without a root exchanges messages with: connected from the start.
  std::vector<int> neighbours() const;

 private:
  bool sums_in_one_place(const Call& call) const;

  int rank_;
  int n_ranks_;
  Layout layout_;
  Algo forced_;
  bool deterministic_;
};

}  // namespace tutti
