// All-reduces between GPUs without fences: every rank writes lines that carry their own flag into the others' rooms,
// and a reader that sees the flag has the data beside it. In one hop every rank gets all inputs and adds them up (the
// schedule one_shot_all_reduce); in two, for more bytes, each rank gets its part of all inputs, adds it up and sends
// the sum to all (two_shot_all_reduce).
//
// Each rank has room for the lines of two consecutive launches. Before a block of launch n overwrites lines of launch
// n-2, it has received a line of launch n-1 from the same block of every other rank: that rank's launch n-2 had ended
// by then, and with it all reading of what is overwritten now. So every block that takes part has at least one line for
// every rank in every launch, and no place is ever written by two different blocks.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tutti::cuda {

inline constexpr int kLineRanks = 16;
inline constexpr uint32_t kLineDataBytes = 8;  // of a line's 16

inline constexpr uint32_t kLineThreads = 256;
inline constexpr uint64_t kOneHopBytesMost = 32 << 10;  // of an input
inline constexpr uint32_t kOneHopBlocks = kOneHopBytesMost / kLineDataBytes / kLineThreads;
inline constexpr uint64_t kOneHopRoomBytes = 2 * kLineRanks * kOneHopBytesMost / kLineDataBytes * 16;

inline constexpr uint32_t kTwoHopThreads = 512;
inline constexpr uint32_t kTwoHopBlocks = 32;
inline constexpr uint64_t kTwoHopBytesMost = 1 << 20;
// How many multiprocessors hold all blocks of a launch at once (ensured by __launch_bounds__). If only part of each
// launch ran, two ranks could wait for each other's missing parts.
inline constexpr int kLineMultiprocessors = 32;

constexpr uint64_t divide_up(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
}
// How many lines a thread has of each rank's part, at most.
constexpr uint32_t two_hop_turns(uint32_t n_ranks) {
  return static_cast<uint32_t>(
      divide_up(divide_up(kTwoHopBytesMost / kLineDataBytes, n_ranks), kTwoHopBlocks * kTwoHopThreads));
}
// For each of two launches: each rank's lines of the first hop, then of the second.
constexpr uint64_t two_hop_room_bytes(uint32_t n_ranks) {
  return uint64_t{16} * 2 * 2 * n_ranks * two_hop_turns(n_ranks) * kTwoHopBlocks * kTwoHopThreads;
}

struct LineCall {
  char* rooms[kLineRanks];  // of all ranks
  uint32_t* epochs;         // this rank's: a word for each block, which counts its launches; 0 at first
  const void* input;
  void* output;
  const uint32_t* abort;  // in host memory; not 0 ends all waiting
  uint32_t elems, divisor;
  int16_t rank, n_ranks, n_hops;
  DataType dtype;
  RedOp op;
};

// How many lines an input takes, and each rank's part of it in two hops. The last parts may be beyond the end.
inline uint64_t lines_of(const LineCall& call) {
  return divide_up(call.elems * dtype_bytes(call.dtype), kLineDataBytes);
}
constexpr uint32_t lines_of_part(uint64_t lines, int n_ranks) {
  return static_cast<uint32_t>(divide_up(lines, static_cast<uint32_t>(n_ranks)));
}
inline uint32_t line_blocks(const LineCall& call) {
  if (call.n_hops == 1) return static_cast<uint32_t>(divide_up(lines_of(call), kLineThreads));
  const uint64_t blocks = divide_up(lines_of_part(lines_of(call), call.n_ranks), kTwoHopThreads);
  return static_cast<uint32_t>(blocks < kTwoHopBlocks ? blocks : kTwoHopBlocks);
}
constexpr uint32_t line_threads(const LineCall& call) {
  return call.n_hops == 1 ? kLineThreads : kTwoHopThreads;
}

}  // namespace tutti::cuda
