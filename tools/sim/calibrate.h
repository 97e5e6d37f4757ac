// This header: what messages, bytes and switches cost on a cluster, from measured times of operations there. Pure
// functions; any thread.
#pragma once

#include <span>

#include "tools/sim/compare.h"

namespace tutti::sim {

// An operation that the first ranks of the cluster have repeated, and its measured time.
struct MeasuredOperation {
  SimulatedOperation of;
  Algo algo = Algo::kAuto;
  int n_ranks = 0;
  double ns = 0;
};

struct Calibration {
  Cluster cluster;
  double median_error = 0;  // over the operations
};

// Adjusts the costs and speeds of `start` so that simulated times are nearest to measured ones: coordinate descent on
// the mean of |log(simulated / measured)|. What is 0 stays 0, and what affects no operation stays as it is. Takes
// several hundred simulations of each operation. kInvalidUsage: there are no operations.
Result<Calibration> calibrate(std::span<const MeasuredOperation> operations, Cluster start);

}  // namespace tutti::sim
