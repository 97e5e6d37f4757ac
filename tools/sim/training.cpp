#include "tools/sim/training.h"

#include <algorithm>

namespace tutti::sim {

std::vector<Bucket> bucket_up(std::span<const uint64_t> tensor_bytes, uint64_t limit_bytes) {
  std::vector<Bucket> buckets;
  const size_t n = tensor_bytes.size();
  for (size_t done = 1; done <= n; done++) {
    if (buckets.empty() || buckets.back().bytes >= limit_bytes) buckets.emplace_back();
    buckets.back().bytes += tensor_bytes[n - done];
    buckets.back().ready_share = static_cast<double>(done) / static_cast<double>(n);
  }
  return buckets;
}

Result<StepTime> step_time(std::span<const Bucket> buckets, double compute_ns,
                           const std::function<Result<double>(uint64_t bytes)>& all_reduce_ns) {
  const double forward_ns = compute_ns / 3, backward_ns = compute_ns - forward_ns;
  StepTime step{.ns = compute_ns};
  double free_ns = 0;  // when the network is free
  for (const Bucket& bucket : buckets) {
    TUTTI_TRY_ASSIGN(const double ns, all_reduce_ns(bucket.bytes));
    free_ns = std::max(free_ns, forward_ns + bucket.ready_share * backward_ns) + ns;
    step.communicates_ns += ns;
  }
  step.ns = std::max(step.ns, free_ns);
  step.efficiency = compute_ns / step.ns;
  return step;
}

}  // namespace tutti::sim
