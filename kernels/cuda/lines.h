// Small all-reduces between GPUs: every rank writes its input to all others in lines that carry their own flag, and
// adds up what comes. One hop, no fence: who sees the flag has the data beside it. Each rank has room for the lines of
// two launches in a row; who is at the next but one has had everybody's lines of the one before, who therefore have
// read all that is overwritten now.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tutti::cuda {

inline constexpr int kLineRanks = 16;
inline constexpr uint32_t kLineThreads = 256;
inline constexpr uint64_t kLineBytesMost = 32 << 10;  // of an input
inline constexpr uint32_t kLineDataBytes = 8;         // of a line's 16
// Block b has the same lines in every launch, so that blocks count launches each for itself.
inline constexpr uint32_t kLineBlocks = kLineBytesMost / kLineDataBytes / kLineThreads;
inline constexpr uint64_t kLineRoomBytes = 2 * kLineRanks * kLineBytesMost / kLineDataBytes * 16;

struct LineCall {
  char* rooms[kLineRanks];  // of all ranks
  uint32_t* epochs;         // this rank's: a word for each block, 0 at first
  const void* input;
  void* output;
  const uint32_t* abort;  // in memory of the host: not 0 ends all waiting
  uint32_t elems, divisor;
  int16_t rank, n_ranks;
  DataType dtype;
  RedOp op;
};

constexpr uint32_t line_blocks(uint64_t bytes) {
  return static_cast<uint32_t>((bytes + kLineDataBytes * kLineThreads - 1) / (kLineDataBytes * kLineThreads));
}

// The CPU's twin of a launch. It waits for the other ranks', so they run on other threads.
void run_lines_on_host(const LineCall& call);

}  // namespace tutti::cuda
