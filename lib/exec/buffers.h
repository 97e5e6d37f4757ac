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

// For operations whose blocks all have `count` elements. Nothing if the size in bytes overflows.
inline std::optional<Buffers> buffers_of(Collective collective, uint64_t count, DataType dtype, int root, int rank,
                                         int n_ranks) {
  const CollectiveTraits& what = traits(collective);
  uint64_t block = 0, all = 0;
  if (__builtin_mul_overflow(count, dtype_bytes(dtype), &block) ||
      __builtin_mul_overflow(block, static_cast<uint64_t>(n_ranks), &all) ||
      (what.has_block_per_rank() ? all : block) > static_cast<uint64_t>(INT64_MAX))
    return std::nullopt;
  const auto bytes = [&](Side side) {
    const bool is_used = side != Side::kNone && (rank == root || !is_of_root(side));
    return !is_used ? 0 : is_all(side) ? all : block;
  };
  Buffers buffers{bytes(what.input), bytes(what.output), InPlace::kSamePointer, static_cast<uint64_t>(rank) * block};
  if (is_all(what.input) != is_all(what.output))
    buffers.in_place = is_all(what.input) ? InPlace::kOutputIsOwnBlock : InPlace::kInputIsOwnBlock;
  else if (is_all(what.input) && n_ranks > 1)  // with one rank it is a copy, which NCCL's tests also do in-place
    buffers.in_place = InPlace::kNever;
  return buffers;
}

}  // namespace tutti
