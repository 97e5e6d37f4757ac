// What checkEvery asks for: that gradients are finite, and parameters and averages the same on all ranks.
//
// Threads: look() on the averager's own; the others on the one that begins and ends the step, before and after that.
#pragma once

#include <cstdint>
#include <vector>

#include "buckets.h"
#include "replica.h"

namespace tutti::ddp {

class Checks {
 public:
  explicit Checks(const Replica& replica) : replica_(replica) {}
  void begin_step(uint64_t number);  // from 1 on; in most steps the others do nothing
  // For Inf and NaN, before the bucket is averaged; bucket after bucket.
  Status look(const Bucket& bucket, Device& device);
  // These wait for the devices.
  Status find_non_finite(const Buckets& buckets) const;
  Status compare_ranks(const Buckets& buckets, const Attendance& present) const;

 private:
  const Replica& replica_;
  bool are_due_ = false;
  std::vector<uint64_t> non_finite_;  // of each parameter, in the order of buckets: its first such element
  size_t looked_at_ = 0;              // parameters of the step's buckets until now
};

}  // namespace tutti::ddp
