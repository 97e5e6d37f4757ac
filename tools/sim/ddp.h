// tutti-sim ddp: how training scales with the number of ranks.
#pragma once

#include <string>

#include "topology/cluster.h"

namespace tutti::sim {

struct Training {
  std::string model;  // like the perf tools' --sizes-from
  int least_ranks = 8, most_ranks = 8;
  double bucket_mb = 25, compute_ms = 0;
  bool json = false;
};

// The table or JSON: one row for each number of ranks, from the least to the most, doubling.
Result<std::string> training_report(const Cluster& cluster, const Training& training);

}  // namespace tutti::sim
