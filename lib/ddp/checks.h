// The checks of config.checkEvery: gradients are finite, and parameters and averages are the same on all ranks.
//
// Threads: look() on the averager's own; the others on the one that begins and ends the step, before and after look().
#pragma once

#include <cstdint>
#include <vector>

#include "buckets.h"
#include "replica.h"

namespace tutti::ddp {

class Checks {
 public:
  explicit Checks(const Replica& replica) : replica_(replica) {}
  void begin_step(uint64_t number);  // from 1 on; in steps without checks the others do nothing
  // Looks for Inf and NaN before the bucket is averaged; called for one bucket after the other.
  Status look(const Bucket& bucket, Device& device);
  // The next two wait for the devices.
  Status find_non_finite(const Buckets& buckets) const;
  Status compare_ranks(const Buckets& buckets, const Attendance& present) const;

 private:
  const Replica& replica_;
  bool are_due_ = false;
  std::vector<uint64_t> non_finite_;  // first such element of each parameter, in bucket order
  size_t looked_at_ = 0;              // number of parameters looked at in this step
};

}  // namespace tutti::ddp
