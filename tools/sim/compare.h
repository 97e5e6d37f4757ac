// This header: simulates an operation with each of the planner's algorithms. Pure functions; any thread.
#pragma once

#include "plan/planner.h"
#include "tools/sim/run.h"

namespace tutti::sim {

struct SimulatedOperation {
  Collective collective = Collective::kAllReduce;
  uint64_t bytes = 0;  // of the larger of input and output, as in the perf tools
  int root = 0;
  bool traces = false;
  int row = 1;                       // see Job
  uint64_t most_steps = UINT64_MAX;  // see Job
};

// The planner's prices on the cluster.
Prices prices_of(const Cluster& cluster);

// The planner as it is on rank 0.
Planner planner_of(const Network& network);
Call call_of(const SimulatedOperation& operation, int n_ranks, DataType dtype);
// The bytes of one block, as planner.h and rank_cost_of() expect them.
uint64_t block_bytes(const SimulatedOperation& operation, int n_ranks);
// All that the planner considers where the order of additions is free; `algo` alone if that is not kAuto.
std::vector<Algo> algorithms_of(const Planner& planner, const SimulatedOperation& operation, Algo algo);

Result<Outcome> run(const Network& network, const SimulatedOperation& operation, Algo algo);

// What the busbw column of the perf tools multiplies algbw by.
double bus_factor(Collective collective, int n_ranks);

}  // namespace tutti::sim
