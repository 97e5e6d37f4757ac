// Data types and reduction operators with NCCL's numbers (lib/api asserts that tutti.h has the same ones).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

enum class DataType : uint8_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8e4m3 = 10,
  kFloat8e5m2 = 11,
};
inline constexpr int kDataTypes = 12;

// kPreMulSum is the sum of what each rank has multiplied by a scalar of its own; the others are the kernels' operators.
enum class RedOp : uint8_t { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4, kPreMulSum = 5 };
inline constexpr int kRedOps = 5;

enum class Collective : uint8_t {
  kNone = 0,
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
  kSendRecv,
  kFinalize,
  kAllReduceQuantized,
};
inline constexpr int kCollectives = 13;

// What a rank has as input or output: nothing, one block, or a block per rank; on all ranks, or only on the root.
enum class Side : uint8_t { kNone, kOne, kAll, kOneOfRoot, kAllOfRoot };
constexpr bool is_all(Side side) {
  return side == Side::kAll || side == Side::kAllOfRoot;
}
constexpr bool is_of_root(Side side) {
  return side == Side::kOneOfRoot || side == Side::kAllOfRoot;
}

struct CollectiveTraits {
  const char* name;  // "AllReduce"
  bool moves_data, reduces;
  Side input = Side::kNone, output = Side::kNone;

  bool has_root() const { return is_of_root(input) || is_of_root(output); }
  bool has_block_per_rank() const { return is_all(input) || is_all(output); }  // counts are of one block
  bool in_blocks() const { return has_block_per_rank() && !has_root(); }       // on every rank
};
const CollectiveTraits& traits(Collective collective);
// A rank's input and output together, in units of its count: blocks, or whole buffers.
int rank_blocks(Collective collective, int n_ranks);

constexpr size_t dtype_bytes(DataType type) {
  constexpr uint8_t kBytes[kDataTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kBytes[static_cast<int>(type)];
}
constexpr bool is_float(DataType type) {
  return type >= DataType::kFloat16;
}
// 16 and 8 bits: added up in float, then rounded.
constexpr bool is_small_float(DataType type) {
  return type == DataType::kFloat16 || type >= DataType::kBfloat16;
}
const char* dtype_name(DataType type);  // "float", "bfloat16": nccl-tests' spelling
const char* red_op_name(RedOp op);      // "sum"

}  // namespace tutti
