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
  using enum Side;
  static constexpr CollectiveTraits kTraits[kCollectives + 1] = {{"nothing", false, false},
                                                                 {"AllReduce", true, true, kOne, kOne},
                                                                 {"Broadcast", true, false, kOneOfRoot, kOne},
                                                                 {"Reduce", true, true, kOne, kOneOfRoot},
                                                                 {"AllGather", true, false, kOne, kAll},
                                                                 {"ReduceScatter", true, true, kAll, kOne},
                                                                 {"AllToAll", true, false, kAll, kAll},
                                                                 {"Gather", true, false, kOne, kAllOfRoot},
                                                                 {"Scatter", true, false, kAllOfRoot, kOne},
                                                                 {"Barrier", false, false},
                                                                 {"SendRecv", true, false},
                                                                 {"Finalize", false, false},
                                                                 {"AllReduceQuantized", true, true, kOne, kOne},
                                                                 {"unknown operation", false, false}};
  const int i = static_cast<int>(collective);
  return kTraits[i < kCollectives ? i : kCollectives];
}

int rank_blocks(Collective collective, int n_ranks) {
  if (!traits(collective).in_blocks()) return 2;
  return collective == Collective::kAllToAll ? 2 * n_ranks : n_ranks + 1;
}

}  // namespace tutti
