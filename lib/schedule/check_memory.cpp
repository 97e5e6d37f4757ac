#include "schedule/check_memory.h"

#include <algorithm>

#include "schedule/text.h"

namespace tutti {
namespace {

// splitmix64's mixing function: a bijection, so different inputs give different numbers.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

Error wrong(std::string message) {
  return {.code = Code::kInternalError, .message = std::move(message)};
}

}  // namespace

CheckMemory::CheckMemory(std::span<const Schedule> schedules, const CheckOptions& options)
    : schedules_(schedules),
      options_(options),
      n_ranks_(static_cast<int>(schedules.size())),
      n_chunks_(schedules[0].n_chunks) {
  all_chunks_ = n_chunks_ * options.rounds;
  uint32_t most_scratch = 0;
  for (const Schedule& schedule : schedules) most_scratch = std::max(most_scratch, schedule.n_scratch);
  output_at_ = options.in_place ? 0 : all_chunks_;
  scratch_at_ = output_at_ + all_chunks_;
  cells_per_rank_ = scratch_at_ + most_scratch;
  cells_.resize(cells_per_rank_ * schedules.size());
  totals_.resize(all_chunks_);
  for (int rank = 0; rank < n_ranks_; rank++) {
    if (options.goal == Goal::kBroadcast && rank != options.root) continue;
    for (uint32_t chunk = 0; chunk < all_chunks_; chunk++) {
      const uint64_t own = contribution(rank, chunk);
      Cell& cell = cells_[static_cast<uint64_t>(rank) * cells_per_rank_ + chunk];
      cell.sum = own;
      cell.chunk = chunk;
      totals_[chunk] += own;
    }
  }
}

uint64_t CheckMemory::contribution(int rank, uint32_t chunk) const {
  return mix(mix(static_cast<uint64_t>(rank)) + chunk);
}

Result<Cell*> CheckMemory::find(int rank, const Slice& slice, uint32_t round) {
  const bool is_scratch = slice.buffer == Buffer::kScratch;
  const bool known = is_scratch || slice.buffer == Buffer::kInput || slice.buffer == Buffer::kOutput;
  const uint64_t n_chunks = is_scratch ? schedules_[static_cast<size_t>(rank)].n_scratch : n_chunks_;
  if (!known || slice.chunk >= n_chunks) {
    return wrong(slice_text(slice) + " is outside its buffer");
  }
  const uint64_t first = static_cast<uint64_t>(rank) * cells_per_rank_;
  if (is_scratch) return &cells_[first + scratch_at_ + slice.chunk];
  const uint64_t buffer_at = slice.buffer == Buffer::kOutput ? output_at_ : 0;
  return &cells_[first + buffer_at + uint64_t{round} * n_chunks_ + slice.chunk];
}

Result<void> CheckMemory::may_read(int rank, const Slice& slice, const Cell& cell) const {
  if (slice.buffer != Buffer::kInput) {
    if (!cell.stored) return wrong(slice_text(slice) + " is read before anything was stored there");
    return {};
  }
  if (options_.goal == Goal::kBroadcast && rank != options_.root) {
    return wrong(slice_text(slice) + " is read, but only the root of a broadcast has an input");
  }
  if (cell.sum != contribution(rank, cell.chunk)) {
    return wrong(slice_text(slice) + " is read after it was overwritten in place");
  }
  return {};
}

const Cell& CheckMemory::output_cell(int rank, uint32_t chunk) const {
  return cells_[static_cast<uint64_t>(rank) * cells_per_rank_ + output_at_ + chunk];
}

Result<void> CheckMemory::check_outputs() const {
  for (int rank = 0; rank < n_ranks_; rank++) {
    for (uint32_t chunk = 0; chunk < all_chunks_; chunk++) {
      const Cell& cell = output_cell(rank, chunk);
      if (cell.stored && cell.sum == totals_[chunk]) continue;
      const std::string where =
          format("rank %d: at the end out[%u] of round %u ", rank, chunk % n_chunks_, chunk / n_chunks_);
      return wrong(where + (cell.stored ? what_is_wrong(cell.sum, chunk) : "was never stored"));
    }
  }
  return {};
}

std::string CheckMemory::what_is_wrong(uint64_t sum, uint32_t chunk) const {
  for (int rank = 0; rank < n_ranks_; rank++) {
    const uint64_t own = contribution(rank, chunk);
    if (sum == own) return format("has only rank %d's contribution", rank);
    if (sum + own == totals_[chunk]) return format("lacks rank %d's contribution", rank);
    if (sum - own == totals_[chunk]) return format("has rank %d's contribution twice", rank);
  }
  return "does not have every contribution exactly once";
}

}  // namespace tutti
