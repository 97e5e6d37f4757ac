// tutti-sim ddp: how training scales with the number of ranks.
#pragma once

#include <string>

#include "topology/cluster.h"

namespace tutti::sim {

struct Training {
  std::string model;  // as --sizes-from of the perf tools
  int least_ranks = 8, most_ranks = 8;
  double bucket_mb = 25, compute_ms = 0;
  bool json = false;
};

// The table or JSON: a row for each number of ranks, doubled from the least to the most.
Result<std::string> training_report(const Cluster& cluster, const Training& training);

}  // namespace tutti::sim
