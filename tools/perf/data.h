// Input data that every rank can compute for itself, and the check of results.
//
// Element i of rank r is a hash of (seed, r, i), shaped so that the reduction over all ranks has one exact answer in
// any order and wherever values are rounded on the way:
//
//   integers  sum, prod  any value (they wrap around); for prod odd values, else products would soon be 0
//             avg        so small that the sum cannot wrap; one sign per element
//   floats    sum, avg   whole numbers; the magnitudes of all ranks together stay below 2^precision
//             prod       +-2^e with few e other than 0, one rank's times an arbitrary significand
//             min, max   any significand, exponents near 0
//   mulsum    like sum, with room for the ranks' scalars, which are small whole numbers and never 1 on rank 0
//   copy      any bits
//
// Where the precision is too small for all ranks (8-bit floats), a window of ranks that moves with the element
// contributes and the others add 0. Results are compared bit by bit. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/tutti.h"

namespace tutti::perf {

inline constexpr int kCopy = -1;  // instead of a tuttiRedOp_t: data are only moved
// Each rank's input times that rank's scalar, summed.
inline constexpr int kMulSum = tuttiNumOps;

struct DataKey {
  tuttiDataType_t type;
  int op;  // tuttiRedOp_t, kMulSum or kCopy
  int n_ranks;
  uint64_t seed;
};

// Elements [first, first + count) of `rank`'s input to out, which need not be aligned.
void fill_input(const DataKey& key, int rank, size_t first, size_t count, void* out);
// Writes rank's scalar for kMulSum, one element.
void fill_scalar(const DataKey& key, int rank, void* out);
// How many of the elements differ from that input.
size_t count_wrong_copy(const DataKey& key, int rank, size_t first, size_t count, const void* data);
// How many elements in one block of `count` per rank differ from this part of the ranks' inputs.
size_t count_wrong_blocks(const DataKey& key, size_t first, size_t count, const void* data);
// How many differ from the reduction of all ranks' inputs. Float averages over a number of ranks that is not a power of
// two may be off by 2 units in the last place: the quotient is not exact, and multiplying by 1/n is legitimate.
size_t count_wrong_reduction(const DataKey& key, size_t first, size_t count, const void* data);
// How many of these floats are further from the sum or average than tuttiAllReduceQuantized allows with blocks of this
// many elements.
inline constexpr size_t kQuantisedBlockElems = 128;
size_t count_wrong_quantised(const DataKey& key, tuttiDataType_t wire, size_t first, size_t count, const void* data);

}  // namespace tutti::perf
