// A collective as moves: which rank's data end where, and whether they are added up on the way. Where all data can be
// read at once, nothing else about a collective matters.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/operation.h"

namespace tutti::cuda {

inline constexpr int kAllRanks = -1;
inline constexpr uint64_t kLineBytes = 128;  // of a device's cache

struct Move {
  int from = kAllRanks;  // kAllRanks: summed up in the order of ranks
  int to = kAllRanks;
  uint64_t from_elem = 0, to_elem = 0;  // where it begins in the input and in the output
  uint64_t elems = 0;
};

// A range of elements.
struct Range {
  uint64_t begin = 0, elems = 0;
};
// What averages are divided by as they are added up; 0 for other operations.
uint32_t divisor_of(const Operation& operation, int n_ranks);

// Rank `rank`'s part of `elems` elements that are divided among the ranks; parts begin on cache lines.
Range part_of(int rank, int n_ranks, uint64_t elems, uint64_t elem_bytes);

// The size of a collective: the bytes of a rank's larger buffer, the same on all ranks.
uint64_t data_bytes(const Operation& operation, int n_ranks);

// Only for collectives that move data, not for point-to-point messages.
std::vector<Move> moves_of(const Operation& operation, int n_ranks);

// Elements of this rank's input and output, from the beginning to the end of what the operation may touch.
struct Extent {
  uint64_t input = 0, output = 0;
};
Extent extent_of(const Operation& operation, int rank, int n_ranks);

}  // namespace tutti::cuda
