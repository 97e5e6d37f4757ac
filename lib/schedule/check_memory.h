// The checker's memory: what every slice of every rank holds, as sums of contributions. Each (rank, chunk) contributes
// a random number; a value is the sum of its contributions mod 2^64. A value is the complete reduction if and only if
// it equals the sum over all ranks: a missing, doubled or foreign contribution passes with probability 2^-64. The
// numbers are the same in every run. Chunks count through all rounds: chunk c of round r is r * n_chunks + c.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace tutti {

struct Value {
  uint64_t sum = 0;  // 0: nothing there
  uint32_t chunk = 0;
};

struct Cell {
  uint64_t sum = 0;
  uint32_t chunk = 0;
  int32_t lane = -1;  // the last lane that touched it, and in which of its steps
  uint32_t tick = 0;
  bool stored = false;  // by a step; else it is as it was before the first one
};

class CheckMemory {
 public:
  CheckMemory(std::span<const Schedule> schedules, const CheckOptions& options);

  // The cell behind a slice, or an error when the slice lies outside its buffer.
  Result<Cell*> find(int rank, const Slice& slice, uint32_t round);
  // An error when nobody may read the slice now.
  Result<void> may_read(int rank, const Slice& slice, const Cell& cell) const;

  uint64_t total(uint32_t chunk) const { return totals_[chunk]; }
  // Does every rank's output hold what it should?
  Result<void> check_outputs() const;

 private:
  uint64_t contribution(int rank, uint32_t chunk) const;
  const Cell& output_cell(int rank, uint32_t chunk) const;
  std::string what_is_wrong(uint64_t sum, uint32_t chunk) const;

  std::span<const Schedule> schedules_;
  CheckOptions options_;
  int n_ranks_;
  uint32_t n_chunks_, all_chunks_;
  uint64_t output_at_, scratch_at_, cells_per_rank_;
  std::vector<Cell> cells_;
  std::vector<uint64_t> totals_;
};

}  // namespace tutti
