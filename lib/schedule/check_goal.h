// What a collective must achieve, as a table for the checker: which logical block every block of every rank's input
// holds, and which one every block of its output must hold in the end. The rest follows: an output is right if it is
// the sum of all inputs that hold its logical block.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "schedule/schedule.h"

namespace tutti {

namespace checker {

// The error of a check that failed.
inline Error wrong(std::string message) {
  return {.code = Code::kInternalError, .message = std::move(message)};
}

}  // namespace checker

struct RankBlocks {
  std::vector<uint32_t> input, output;  // logical blocks, numbered for all ranks together
};

struct GoalTable {
  uint32_t logical_blocks = 1;
  bool reduces = false;  // several ranks contribute to a block
  std::vector<RankBlocks> ranks;
};

Result<GoalTable> goal_table(int n_ranks, const CheckOptions& options);

}  // namespace tutti
