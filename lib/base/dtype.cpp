#include "base/dtype.h"

#include <iterator>

namespace tutti {

const char* dtype_name(DataType type) {
  static constexpr const char* kNames[kDataTypes] = {"int8", "uint8", "int32",  "uint32",   "int64",  "uint64",
                                                     "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"};
  const int i = static_cast<int>(type);
  return i < kDataTypes ? kNames[i] : "unknown-type";
}

const char* red_op_name(RedOp op) {
  static constexpr const char* kNames[] = {"sum", "prod", "max", "min", "avg", "mulsum"};
  const size_t i = static_cast<size_t>(op);
  return i < std::size(kNames) ? kNames[i] : "unknown-op";
}

const CollectiveTraits& traits(Collective collective) {
  static constexpr CollectiveTraits kTraits[kCollectives + 1] = {{"nothing", false, false, false, false},
                                                                 {"AllReduce", true, true, false, false},
                                                                 {"Broadcast", true, false, true, false},
                                                                 {"Reduce", true, true, true, false},
                                                                 {"AllGather", true, false, false, true},
                                                                 {"ReduceScatter", true, true, false, true},
                                                                 {"AllToAll", true, false, false, true},
                                                                 {"Gather", true, false, true, false},
                                                                 {"Scatter", true, false, true, false},
                                                                 {"Barrier", false, false, false, false},
                                                                 {"SendRecv", true, false, false, false},
                                                                 {"Finalize", false, false, false, false},
                                                                 {"AllReduceQuantized", true, true, false, false},
                                                                 {"unknown operation", false, false, false, false}};
  const int i = static_cast<int>(collective);
  return kTraits[i < kCollectives ? i : kCollectives];
}

int rank_blocks(Collective collective, int n_ranks) {
  if (!traits(collective).in_blocks) return 2;
  return collective == Collective::kAllToAll ? 2 * n_ranks : n_ranks + 1;
}

}  // namespace tutti
