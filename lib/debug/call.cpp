#include "debug/call.h"

#include <algorithm>

namespace tutti {
namespace {

// "; recvcounts[1] is 10 on rank 0 and 12 on rank 2", if two calls of one operation have blocks of different sizes.
std::string blocks_text(const Account& one, const Account& other) {
  const Call &a = one.call, &b = other.call;
  if (a.collective != b.collective || a.sequence != b.sequence || a.blocks == b.blocks || a.blocks == 0 ||
      b.blocks == 0)
    return "";
  const size_t known = std::min(one.blocks.size(), other.blocks.size());
  for (size_t r = 0; r < known; r++)
    if (one.blocks[r] != other.blocks[r])
      return format("; recvcounts[%zu] is %lu on rank %d and %lu on rank %d", r, one.blocks[r], one.rank,
                    other.blocks[r], other.rank);
  return format("; rank %d and rank %d gave different recvcounts", one.rank, other.rank);
}

}  // namespace

TagWords to_tag(const Call& call) {
  const uint64_t kinds = static_cast<uint64_t>(call.collective) | static_cast<uint64_t>(call.dtype) << 8 |
                         static_cast<uint64_t>(call.op) << 16 | static_cast<uint64_t>(call.algo) << 24 |
                         static_cast<uint64_t>(static_cast<uint32_t>(call.root)) << 32;
  return {call.sequence, call.count, kinds, call.blocks};
}

Call from_tag(const TagWords& words) {
  return {.sequence = words[0],
          .count = words[1],
          .collective = static_cast<Collective>(words[2] & 0xff),
          .dtype = static_cast<DataType>(words[2] >> 8 & 0xff),
          .op = static_cast<RedOp>(words[2] >> 16 & 0xff),
          .algo = static_cast<Algo>(words[2] >> 24 & 0xf),
          .root = static_cast<int32_t>(words[2] >> 32),
          .blocks = words[3]};
}

std::string to_text(const Call& call) {
  if (call.collective == Collective::kAllGather && call.op != RedOp::kSum)
    return format("%s as operation %lu", call.op == kGathersForSplit ? "CommSplit" : "CommGrow", call.sequence);
  const CollectiveTraits& what = traits(call.collective);
  std::string text = what.name;
  if (call.blocks != 0) text += "v";
  if (what.moves_data)
    text += format("(count=%lu%s, %s", call.count, call.blocks != 0 ? " in all" : "", dtype_name(call.dtype));
  if (what.reduces) text += format(", %s", red_op_name(call.op));
  if (what.has_root()) text += format(", root=%d", call.root);
  if (call.collective == Collective::kAllReduceQuantized)
    text += format(", %s in blocks of %u", dtype_name(wire_of(call.root).dtype), wire_of(call.root).block_elems);
  if (what.moves_data) text += ")";
  if (call.algo != Algo::kAuto) text += format(" [%s]", algo_name(call.algo));
  return text + format(" as operation %lu", call.sequence);
}

uint32_t hash_of(std::span<const uint64_t> blocks) {
  uint64_t hash = blocks.size();
  for (const uint64_t elems : blocks) {
    hash = (hash ^ elems) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return std::max<uint32_t>(1, static_cast<uint32_t>(hash));
}

Error disagreement(const Account& one, const Account& other) {
  return {
      Code::kInvalidUsage,
      format("the ranks disagree: rank %d called %s%s, rank %d called %s%s%s; all ranks of a communicator must call "
             "the same operations with the same arguments in the same order",
             one.rank, to_text(one.call).c_str(), one.place.c_str(), other.rank, to_text(other.call).c_str(),
             other.place.c_str(), blocks_text(one, other).c_str()),
      other.rank};
}

}  // namespace tutti
