// The built-in hooks except PowerSGD, and the user's.
#include <map>

#include "device.h"
#include "hook.h"

namespace tutti::ddp {
namespace {

// 32- and 64-bit floats travel as 16-bit ones.
class Halve : public Hook {
 public:
  explicit Halve(tuttiDataType_t type) : type_(type) {}
  Status prepare(Device& device, size_t bytes) override { return scratch_[&device].reserve(device, bytes / 2); }
  Status run(const tuttiDdpBucket_t& bucket, Device& device, size_t* bytes) override {
    if (element_bytes(bucket.datatype) == sizeof(uint16_t)) return Hook::run(bucket, device, bytes);
    const Span wide = {bucket.data, bucket.count, bucket.datatype};
    const Span small = {scratch_[&device].data(), bucket.count, type_};
    if (Status s = device.convert(wide, small); !s) return s;
    if (Status s = average(small.at, small.count, type_, device, bytes); !s) return s;
    return device.convert(small, wide);
  }

 private:
  const tuttiDataType_t type_;
  std::map<Device*, Memory> scratch_;
};

// 32-bit floats travel as bytes.
class Quantise : public Hook {
 public:
  Quantise(tuttiDataType_t wire, bool feeds_back) : wire_(wire), feeds_back_(feeds_back) {}
  Status prepare(Device&, size_t) override {
    errors_.clear();
    return {};
  }
  Status run(const tuttiDdpBucket_t& bucket, Device& device, size_t* bytes) override {
    if (bucket.datatype != tuttiFloat32) return Hook::run(bucket, device, bytes);
    constexpr size_t kBlockElems = 128;
    *bytes += bucket.count + (bucket.count + kBlockElems - 1) / kBlockElems * sizeof(float);
    Memory& errors = errors_[bucket.index];
    Status room;  // the average is made even without it: the other ranks need this rank's part of the bucket
    if (feeds_back_ && errors.bytes() == 0) room = errors.allocate(device, bucket.count * sizeof(float));
    const Status ran =
        library(tuttiAllReduceQuantized(bucket.data, bucket.data, bucket.count, tuttiFloat32, tuttiAvg, wire_,
                                        kBlockElems, errors.data(), device.comm(), device.stream(Queue::kOwn)));
    return room ? ran : room;
  }

 private:
  const tuttiDataType_t wire_;
  const bool feeds_back_;
  std::map<size_t, Memory> errors_;  // by bucket
};

class UserHook : public Hook {
 public:
  UserHook(tuttiDdpHook_t hook, void* user_data) : hook_(hook), user_data_(user_data) {}
  Status run(const tuttiDdpBucket_t& bucket, Device& device, size_t* bytes) override {
    *bytes += bucket.count * element_bytes(bucket.datatype);
    const tuttiResult_t result = hook_(&bucket, device.comm(), device.stream(Queue::kOwn), user_data_);
    if (result == tuttiSuccess) return {};
    return Error{result, text("the hook of bucket %zu returned '%s'; the last error on its thread: %s", bucket.index,
                              tuttiGetErrorString(result), tuttiGetLastError(nullptr))};
  }

 private:
  const tuttiDdpHook_t hook_;
  void* const user_data_;
};

}  // namespace

Status average(void* data, size_t count, tuttiDataType_t type, Device& device, size_t* bytes) {
  *bytes += count * element_bytes(type);
  return library(tuttiAllReduce(data, data, count, type, tuttiAvg, device.comm(), device.stream(Queue::kOwn)));
}

std::unique_ptr<Hook> make_hook(const tuttiDdpConfig_t& config, const std::vector<Tensor>& params) {
  if (config.hook != nullptr) return std::make_unique<UserHook>(config.hook, config.hookUserData);
  switch (config.compression) {
    case tuttiDdpFloat16: return std::make_unique<Halve>(tuttiFloat16);
    case tuttiDdpBfloat16: return std::make_unique<Halve>(tuttiBfloat16);
    case tuttiDdpInt8: return std::make_unique<Quantise>(tuttiInt8, config.errorFeedback != 0);
    case tuttiDdpFloat8e4m3: return std::make_unique<Quantise>(tuttiFloat8e4m3, config.errorFeedback != 0);
    case tuttiDdpPowerSgd: return make_power_sgd(config, params);
    default: return std::make_unique<Hook>();
  }
}

}  // namespace tutti::ddp
