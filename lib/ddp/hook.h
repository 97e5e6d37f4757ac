// How a full bucket is averaged.
#pragma once

#include <memory>
#include <vector>

#include "device.h"
#include "tensor.h"

namespace tutti::ddp {

// An all-reduce in place.
Status average(void* data, size_t count, tuttiDataType_t type, Device& device, size_t* bytes);

// The plain average, which other hooks fall back to.
class Hook {
 public:
  virtual ~Hook() = default;
  // Before the first step, and after buckets were rebuilt. The number: bytes of the device's largest bucket.
  virtual Status prepare(Device&, size_t) { return {}; }
  // Puts the average into bucket.data, on the averager's thread or in the device's own queue, and adds the number of
  // bytes given to operations to *bytes. One bucket at a time.
  virtual Status run(const tuttiDdpBucket_t& bucket, Device& device, size_t* bytes) {
    return average(bucket.data, bucket.count, bucket.datatype, device, bytes);
  }
};

// The hook that the config selects. `params` must outlive it.
std::unique_ptr<Hook> make_hook(const tuttiDdpConfig_t& config, const std::vector<Tensor>& params);
std::unique_ptr<Hook> make_power_sgd(const tuttiDdpConfig_t& config, const std::vector<Tensor>& params);

}  // namespace tutti::ddp
