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
  std::vector<Move> moves;
  const auto for_each_block = [&](auto&& make) {
    for (int b = 0; b < n_ranks; b++) moves.push_back(make(b, block_of(operation, b)));
  };
  switch (operation.collective) {
    case Collective::kAllReduce:
    case Collective::kAllReduceQuantized: return {{kAllRanks, kAllRanks, 0, 0, operation.count}};
    case Collective::kBroadcast: return {{operation.root, kAllRanks, 0, 0, operation.count}};
    case Collective::kReduce: return {{kAllRanks, operation.root, 0, 0, operation.count}};
    case Collective::kAllGather:
      for_each_block([](int b, Block block) { return Move{b, kAllRanks, 0, block.at, block.elems}; });
      break;
    case Collective::kReduceScatter:
      for_each_block([](int b, Block block) { return Move{kAllRanks, b, block.at, 0, block.elems}; });
      break;
    case Collective::kGather:
      for_each_block([&](int b, Block block) { return Move{b, operation.root, 0, block.at, block.elems}; });
      break;
    case Collective::kScatter:
      for_each_block([&](int b, Block block) { return Move{operation.root, b, block.at, 0, block.elems}; });
      break;
    case Collective::kAllToAll:
      for (int to = 0; to < n_ranks; to++)
        for_each_block([&](int from, Block block) {
          return Move{from, to, static_cast<uint64_t>(to) * operation.count, block.at, operation.count};
        });
      break;
    default: break;
  }
  std::erase_if(moves, [](const Move& move) { return move.elems == 0; });
  return moves;
}

uint64_t data_bytes(const Operation& operation, int n_ranks) {
  uint64_t elems = 0;
  for (int b = 0; b < (has_block_per_rank(operation.collective) ? n_ranks : 1); b++)
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
