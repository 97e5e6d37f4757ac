// What is done with a bucket that is due.
#pragma once

#include <memory>
#include <vector>

#include "tensor.h"

namespace tutti::ddp {

class Hook {
 public:
  virtual ~Hook() = default;
  // Leaves the average in bucket.data and adds to *bytes what was given to operations. Blocks; on one thread at a time.
  virtual Status run(const tuttiDdpBucket_t& bucket, tuttiComm_t comm, size_t* bytes) = 0;
};

// The hook that the config asks for. `params` outlive it.
std::unique_ptr<Hook> make_hook(const tuttiDdpConfig_t& config, const std::vector<Tensor>& params);
std::unique_ptr<Hook> make_power_sgd(const tuttiDdpConfig_t& config, const std::vector<Tensor>& params);

// An all-reduce in place.
Status average(void* data, size_t count, tuttiDataType_t type, tuttiComm_t comm, size_t* bytes);

}  // namespace tutti::ddp
