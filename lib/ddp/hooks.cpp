// The built-in hooks, but PowerSGD.
#include "floats.h"
#include "hook.h"
#include "memory.h"

namespace tutti::ddp {
namespace {

class Average : public Hook {
 public:
  Status run(const tuttiDdpBucket_t& bucket, tuttiComm_t comm, size_t* bytes) override {
    return average(bucket.data, bucket.count, bucket.datatype, comm, bytes);
  }
};

// Larger floats travel as 16-bit ones.
template <auto to_16_bits, auto from_16_bits>
class Halve : public Hook {
 public:
  explicit Halve(tuttiDataType_t type) : type_(type) {}
  Status run(const tuttiDdpBucket_t& bucket, tuttiComm_t comm, size_t* bytes) override {
    if (bucket.datatype == tuttiFloat32) return run_on(static_cast<float*>(bucket.data), bucket.count, comm, bytes);
    if (bucket.datatype == tuttiFloat64) return run_on(static_cast<double*>(bucket.data), bucket.count, comm, bytes);
    return average(bucket.data, bucket.count, bucket.datatype, comm, bytes);
  }

 private:
  template <class Float>
  Status run_on(Float* data, size_t count, tuttiComm_t comm, size_t* bytes) {
    if (Status s = scratch_.reserve(count * sizeof(uint16_t)); !s) return s;
    auto* small = reinterpret_cast<uint16_t*>(scratch_.data());
    for (size_t i = 0; i < count; i++) small[i] = to_16_bits(static_cast<float>(data[i]));
    if (Status s = average(small, count, type_, comm, bytes); !s) return s;
    for (size_t i = 0; i < count; i++) data[i] = static_cast<Float>(from_16_bits(small[i]));
    return {};
  }

  const tuttiDataType_t type_;
  Memory scratch_;
};

class UserHook : public Hook {
 public:
  UserHook(tuttiDdpHook_t hook, void* user_data) : hook_(hook), user_data_(user_data) {}
  Status run(const tuttiDdpBucket_t& bucket, tuttiComm_t comm, size_t* bytes) override {
    *bytes += bucket.count * element_bytes(bucket.datatype);
    const tuttiResult_t result = hook_(&bucket, comm, nullptr, user_data_);
    if (result == tuttiSuccess) return {};
    return Error{result, text("the hook of bucket %zu returned '%s'; the last error on its thread: %s", bucket.index,
                              tuttiGetErrorString(result), tuttiGetLastError(nullptr))};
  }

 private:
  const tuttiDdpHook_t hook_;
  void* const user_data_;
};

}  // namespace

Status average(void* data, size_t count, tuttiDataType_t type, tuttiComm_t comm, size_t* bytes) {
  *bytes += count * element_bytes(type);
  return library(tuttiAllReduce(data, data, count, type, tuttiAvg, comm, nullptr));
}

std::unique_ptr<Hook> make_hook(const tuttiDdpConfig_t& config, const std::vector<Tensor>& params) {
  if (config.hook != nullptr) return std::make_unique<UserHook>(config.hook, config.hookUserData);
  switch (config.compression) {
    case tuttiDdpFloat16: return std::make_unique<Halve<to_float16, from_float16>>(tuttiFloat16);
    case tuttiDdpBfloat16: return std::make_unique<Halve<to_bfloat16, from_bfloat16>>(tuttiBfloat16);
    case tuttiDdpPowerSgd: return make_power_sgd(config, params);
    default: return std::make_unique<Average>();
  }
}

}  // namespace tutti::ddp
