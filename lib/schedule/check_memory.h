// The checker's memory: what every slice of every rank holds, as sums of contributions. Each (rank, chunk) contributes
// a random number; a value is the sum of its contributions mod 2^64. A value is the complete reduction if and only if
// it equals the sum over all ranks: a missing, doubled or foreign contribution passes with probability 2^-64. The
// numbers are the same in every run. Chunks here are logical ones, numbered through all rounds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
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

// What a collective must achieve: which logical block every block of every rank's input holds, and which one every
// block of its output must hold in the end. The rest follows: an output is right if it is the sum of all inputs that
// hold its logical block.
struct RankBlocks {
  std::vector<uint32_t> input, output;  // logical blocks, numbered for all ranks together
};

struct GoalTable {
  uint32_t logical_blocks = 1;
  bool reduces = false;  // several ranks contribute to a block
  std::vector<RankBlocks> ranks;
};

Result<GoalTable> goal_table(int n_ranks, const CheckOptions& options);

struct Value {
  uint64_t sum = 0;    // 0: nothing there
  uint64_t order = 0;  // hash of the operands and the order in which they were added: equal for equal bits
  uint32_t chunk = 0;
  bool completed = false;  // has passed the step that completes it
};

Value add(const Value& left, const Value& right);

// A lane and one of its steps.
struct Moment {
  int32_t lane = -1;
  uint32_t tick = 0;
};

struct Cell {
  Value value;
  Moment last;                  // its last access
  std::vector<Moment> readers;  // receivers that it was exposed to, since it was last stored
  bool stored = false;          // by a step; else it has its initial content
};

class CheckMemory {
 public:
  CheckMemory(std::span<const Schedule> schedules, const CheckOptions& options, GoalTable table);

  // A step's chunk, numbered through all rounds; nothing if there is no such chunk.
  std::optional<uint32_t> chunk_of(int rank, const Step& step, uint32_t round) const;
  // The cell behind a slice, or an error when the slice lies outside its buffer.
  Result<Cell*> find(int rank, const Slice& slice, uint32_t round);
  // The chunk that belongs in a slice of the output.
  uint32_t output_chunk(int rank, uint32_t slice_chunk, uint32_t round) const;
  // An error when the slice must not be read now.
  Result<void> may_read(int rank, const Slice& slice, const Cell& cell) const;

  // Checks the step's `completes` against the value it has made, and marks a complete sum as completed.
  Result<void> judge_completion(const Step& step, Value& value) const;

  bool reduces() const { return table_.reduces; }
  // Does every rank's output hold what it should?
  Result<void> check_outputs() const;

 private:
  struct Place {
    uint64_t input_at = 0, output_at = 0, scratch_at = 0;  // in cells_
  };

  Place lay_out(int rank, uint64_t first) const;
  void fill_input(int rank);
  uint64_t contribution(int rank, uint32_t chunk) const;
  uint32_t number(uint32_t logical_block, uint32_t chunk_in_block, uint32_t round) const {
    return (round * table_.logical_blocks + logical_block) * n_chunks_ + chunk_in_block;
  }
  uint64_t index(uint64_t buffer_at, uint32_t slice_chunk, uint32_t round) const;
  Result<void> check_output(int rank, uint32_t slice_chunk, uint32_t round, Value& first) const;
  std::string what_is_wrong(uint64_t sum, uint32_t chunk) const;
  const RankBlocks& blocks(int rank) const { return table_.ranks[static_cast<size_t>(rank)]; }

  std::span<const Schedule> schedules_;
  CheckOptions options_;
  GoalTable table_;
  int n_ranks_;
  uint32_t n_chunks_;
  std::vector<Place> places_;  // by rank
  std::vector<Cell> cells_;
  std::vector<Value> totals_;  // by chunk; added up in rank order
};

}  // namespace tutti
