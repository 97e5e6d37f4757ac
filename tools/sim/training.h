// This header: a step of data-parallel training: gradients become ready one after the other, in buckets, and each
// bucket's all-reduce runs while the others are still computed. Pure functions; any thread.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/result.h"

namespace tutti::sim {

struct Bucket {
  uint64_t bytes = 0;
  double ready_share = 0;  // share of the backward pass after which all its gradients are ready
};

// Puts gradients, from the last tensor to the first, in buckets that are closed once they have `limit_bytes`. Every
// tensor takes the same share of the backward pass.
std::vector<Bucket> bucket_up(std::span<const uint64_t> tensor_bytes, uint64_t limit_bytes);

struct StepTime {
  double ns = 0;               // forward, backward, and what is left of the all-reduces
  double communicates_ns = 0;  // total of the all-reduces
  double efficiency = 1;       // compute time divided by `ns`
};

// One all-reduce at a time, in the order of buckets. Of `compute_ns` a third is the forward pass.
Result<StepTime> step_time(std::span<const Bucket> buckets, double compute_ns,
                           const std::function<Result<double>(uint64_t bytes)>& all_reduce_ns);

}  // namespace tutti::sim
