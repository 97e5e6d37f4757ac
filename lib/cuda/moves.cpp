#include "cuda/moves.h"

#include <algorithm>

#include "exec/buffers.h"

namespace tutti::cuda {
namespace {

// Block b of an operation that gathers or scatters: there is one per rank.
struct Block {
  uint64_t at, elems;
};
Block block_of(const Operation& operation, int b) {
  const auto i = static_cast<size_t>(b);
  if (operation.unequal != nullptr) return {operation.unequal->at[i], operation.unequal->elems[i]};
  return {i * operation.count, operation.count};
}

}  // namespace

std::vector<Move> moves_of(const Operation& operation, int n_ranks) {
  const CollectiveTraits& what = traits(operation.collective);
  const bool scatters = is_all(what.input), gathers = is_all(what.output);
  const auto whose = [&](Side side) { return is_of_root(side) ? operation.root : kAllRanks; };
  std::vector<Move> moves;
  for (int to = 0; to < (scatters ? n_ranks : 1); to++)
    for (int from = 0; from < (gathers ? n_ranks : 1); from++) {
      const Block taken = block_of(operation, to), put = block_of(operation, from);
      const Move move{gathers ? from : whose(what.input), scatters ? to : whose(what.output), scatters ? taken.at : 0,
                      gathers ? put.at : 0, scatters ? taken.elems : put.elems};
      if (move.elems > 0) moves.push_back(move);
    }
  return moves;
}

uint64_t data_bytes(const Operation& operation, int n_ranks) {
  uint64_t elems = 0;
  for (int b = 0; b < (traits(operation.collective).has_block_per_rank() ? n_ranks : 1); b++)
    elems += block_of(operation, b).elems;
  return elems * dtype_bytes(operation.dtype);
}

uint32_t divisor_of(const Operation& operation, int n_ranks) {
  const bool divides = operation.op == RedOp::kAvg && traits(operation.collective).reduces;
  return divides ? static_cast<uint32_t>(n_ranks) : 0;
}

Range part_of(int rank, int n_ranks, uint64_t elems, uint64_t elem_bytes) {
  const uint64_t line = kLineBytes / elem_bytes;
  const auto ranks = static_cast<uint64_t>(n_ranks);
  const uint64_t part = ((elems + ranks - 1) / ranks + line - 1) / line * line;
  const uint64_t begin = std::min(elems, static_cast<uint64_t>(rank) * part);
  return {begin, std::min(part, elems - begin)};
}

Extent extent_of(const Operation& operation, int rank, int n_ranks) {
  Extent extent;
  for (const Move& move : moves_of(operation, n_ranks)) {
    if (move.from == kAllRanks || move.from == rank) extent.input = std::max(extent.input, move.from_elem + move.elems);
    if (move.to == kAllRanks || move.to == rank) extent.output = std::max(extent.output, move.to_elem + move.elems);
  }
  return extent;
}

}  // namespace tutti::cuda
