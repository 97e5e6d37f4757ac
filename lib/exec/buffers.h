// Which buffers an operation uses on a rank, and how they may overlap.
#pragma once

#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace tutti {

// What in-place means for an operation: equal pointers, or that one buffer is this rank's block of the other.
enum class InPlace : uint8_t { kNever, kSamePointer, kInputIsOwnBlock, kOutputIsOwnBlock };

struct Buffers {
  uint64_t input_bytes = 0, output_bytes = 0;  // 0: this rank does not use it
  InPlace in_place = InPlace::kNever;
  uint64_t own_block_at = 0;  // byte offset in the buffer that has a block for each rank

  bool lacks_input(const void* input) const { return input == nullptr && input_bytes > 0; }
  bool lacks_output(const void* output) const { return output == nullptr && output_bytes > 0; }
  // Whether the buffers are disjoint, or overlap as in-place allows.
  bool lie_well(const void* input, const void* output) const {
    const auto from = reinterpret_cast<uintptr_t>(input), to = reinterpret_cast<uintptr_t>(output);
    if (input_bytes == 0 || output_bytes == 0) return true;
    if (from >= to + output_bytes || to >= from + input_bytes) return true;
    return (in_place == InPlace::kSamePointer && from == to) ||
           (in_place == InPlace::kInputIsOwnBlock && from == to + own_block_at) ||
           (in_place == InPlace::kOutputIsOwnBlock && to == from + own_block_at);
  }
  bool fit(const void* input, const void* output) const {
    return !lacks_input(input) && !lacks_output(output) && lie_well(input, output);
  }
};

inline bool has_block_per_rank(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kReduceScatter ||
         collective == Collective::kAllToAll || collective == Collective::kGather || collective == Collective::kScatter;
}

// For operations whose blocks all have `count` elements. Nothing if the size in bytes overflows.
inline std::optional<Buffers> buffers_of(Collective collective, uint64_t count, DataType dtype, int root, int rank,
                                         int n_ranks) {
  const auto ranks = static_cast<uint64_t>(n_ranks);
  uint64_t block = 0, all = 0;
  if (__builtin_mul_overflow(count, dtype_bytes(dtype), &block) || __builtin_mul_overflow(block, ranks, &all) ||
      (has_block_per_rank(collective) ? all : block) > static_cast<uint64_t>(INT64_MAX))
    return std::nullopt;
  const bool is_root = rank == root;
  const uint64_t own_at = static_cast<uint64_t>(rank) * block;
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kAllReduceQuantized: return Buffers{block, block, InPlace::kSamePointer, 0};
    case Collective::kBroadcast: return Buffers{is_root ? block : 0, block, InPlace::kSamePointer, 0};
    case Collective::kReduce: return Buffers{block, is_root ? block : 0, InPlace::kSamePointer, 0};
    case Collective::kAllGather: return Buffers{block, all, InPlace::kInputIsOwnBlock, own_at};
    case Collective::kReduceScatter: return Buffers{all, block, InPlace::kOutputIsOwnBlock, own_at};
    case Collective::kAllToAll:  // with one rank it is a copy, which NCCL's tests also do in-place
      return Buffers{all, all, n_ranks == 1 ? InPlace::kSamePointer : InPlace::kNever, 0};
    case Collective::kGather: return Buffers{block, is_root ? all : 0, InPlace::kInputIsOwnBlock, own_at};
    case Collective::kScatter: return Buffers{is_root ? all : 0, block, InPlace::kOutputIsOwnBlock, own_at};
    default: return Buffers{};
  }
}

}  // namespace tutti
