#include "base/dtype.h"

namespace tutti {

size_t dtype_bytes(DataType type) {
  static constexpr uint8_t kBytes[kDataTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kBytes[static_cast<int>(type)];
}

const char* dtype_name(DataType type) {
  static constexpr const char* kNames[kDataTypes] = {"int8", "uint8", "int32",  "uint32",   "int64",  "uint64",
                                                     "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"};
  const int i = static_cast<int>(type);
  return i < kDataTypes ? kNames[i] : "unknown-type";
}

const char* red_op_name(RedOp op) {
  static constexpr const char* kNames[kRedOps] = {"sum", "prod", "max", "min", "avg"};
  const int i = static_cast<int>(op);
  return i < kRedOps ? kNames[i] : "unknown-op";
}

const char* collective_name(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce: return "AllReduce";
    case Collective::kBroadcast: return "Broadcast";
    case Collective::kFinalize: return "Finalize";
    case Collective::kNone: break;
  }
  return "unknown-collective";
}

}  // namespace tutti
