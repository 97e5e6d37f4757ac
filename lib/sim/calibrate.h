// This header: what messages, bytes and switches cost on a cluster, from what operations took there. Pure functions;
// any thread.
#pragma once

#include <span>

#include "sim/compare.h"

namespace tutti::sim {

// An operation that the first ranks of the cluster have done again and again.
struct MeasuredOperation {
  SimulatedOperation of;
  Algo algo = Algo::kAuto;
  int n_ranks = 0;
  double ns = 0;
};

struct Calibration {
  Cluster cluster;
  double median_error = 0;  // of the operations
};

// The costs and speeds of `start` changed so that the simulated times are nearest: coordinate descent on the mean of
// |log(simulated / measured)|. What is 0 stays 0, and what no operation has to do with stays as it is. Takes some
// hundred simulations of each operation. kInvalidUsage: there are none.
Result<Calibration> calibrate(std::span<const MeasuredOperation> operations, Cluster start);

}  // namespace tutti::sim
