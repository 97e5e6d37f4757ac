#include "schedule/check_memory.h"

#include <algorithm>

namespace tutti {
namespace {

// splitmix64's mixing function: a bijection, so different inputs give different numbers.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

using checker::wrong;

// Where `part` starts in `whole`, in blocks, when they share memory in place. 0 if either is empty.
uint64_t block_within(const std::vector<uint32_t>& whole, const std::vector<uint32_t>& part) {
  if (part.empty()) return 0;
  const auto at = std::find(whole.begin(), whole.end(), part[0]);
  return at == whole.end() ? 0 : static_cast<uint64_t>(at - whole.begin());
}

}  // namespace

// Not symmetric on purpose: which of two NaNs a sum keeps depends on which is on the left.
Value add(const Value& left, const Value& right) {
  return {left.sum + right.sum, mix(mix(left.order) + right.order), right.chunk, left.completed || right.completed};
}

CheckMemory::CheckMemory(std::span<const Schedule> schedules, const CheckOptions& options, GoalTable table)
    : schedules_(schedules),
      options_(options),
      table_(std::move(table)),
      n_ranks_(static_cast<int>(schedules.size())),
      n_chunks_(schedules[0].n_chunks) {
  uint64_t end = 0;
  for (int rank = 0; rank < n_ranks_; rank++) {
    places_.push_back(lay_out(rank, end));
    end = places_.back().scratch_at + schedules_[static_cast<size_t>(rank)].n_scratch;
  }
  cells_.resize(end);
  totals_.resize(uint64_t{table_.logical_blocks} * n_chunks_ * options.rounds);
  for (int rank = 0; rank < n_ranks_; rank++) fill_input(rank);
}

CheckMemory::Place CheckMemory::lay_out(int rank, uint64_t first) const {
  const std::vector<uint32_t>&input = blocks(rank).input, &output = blocks(rank).output;
  const uint64_t block_cells = uint64_t{n_chunks_} * options_.rounds;
  if (!options_.in_place) {
    const uint64_t output_at = first + input.size() * block_cells;
    return {first, output_at, output_at + output.size() * block_cells};
  }
  const uint64_t end = first + std::max(input.size(), output.size()) * block_cells;
  return {first + block_within(output, input) * block_cells, first + block_within(input, output) * block_cells, end};
}

void CheckMemory::fill_input(int rank) {
  const std::vector<uint32_t>& input = blocks(rank).input;
  for (uint32_t round = 0; round < options_.rounds; round++) {
    for (uint32_t c = 0; c < input.size() * n_chunks_; c++) {
      const uint32_t chunk = number(input[c / n_chunks_], c % n_chunks_, round);
      const uint64_t own = contribution(rank, chunk);
      Value& value = cells_[index(places_[static_cast<size_t>(rank)].input_at, c, round)].value;
      value = {own, own, chunk, false};
      Value& total = totals_[chunk];
      total = total.sum == 0 ? value : add(total, value);
    }
  }
}

uint64_t CheckMemory::contribution(int rank, uint32_t chunk) const {
  return mix(mix(static_cast<uint64_t>(rank)) + chunk);
}

uint64_t CheckMemory::index(uint64_t buffer_at, uint32_t slice_chunk, uint32_t round) const {
  const uint32_t block = slice_chunk / n_chunks_, in_block = slice_chunk % n_chunks_;
  return buffer_at + (uint64_t{block} * options_.rounds + round) * n_chunks_ + in_block;
}

std::optional<uint32_t> CheckMemory::chunk_of(int rank, const Step& step, uint32_t round) const {
  uint32_t block = step.chunk / n_chunks_;
  if (options_.goal == Goal::kSendRecv) {  // each rank has its own numbering
    const std::vector<uint32_t>&input = blocks(rank).input, &output = blocks(rank).output;
    if (block >= input.size() + output.size()) return {};
    block = block < input.size() ? input[block] : output[block - input.size()];
  }
  if (block >= table_.logical_blocks) return {};
  return number(block, step.chunk % n_chunks_, round);
}

Result<Cell*> CheckMemory::find(int rank, const Slice& slice, uint32_t round) {
  const Place& place = places_[static_cast<size_t>(rank)];
  if (slice.buffer == Buffer::kScratch && slice.chunk < schedules_[static_cast<size_t>(rank)].n_scratch)
    return &cells_[place.scratch_at + slice.chunk];
  if (slice.buffer == Buffer::kInput && slice.chunk / n_chunks_ < blocks(rank).input.size())
    return &cells_[index(place.input_at, slice.chunk, round)];
  if (slice.buffer == Buffer::kOutput && slice.chunk / n_chunks_ < blocks(rank).output.size())
    return &cells_[index(place.output_at, slice.chunk, round)];
  return wrong(slice_text(slice) + " is outside its buffer");
}

uint32_t CheckMemory::output_chunk(int rank, uint32_t slice_chunk, uint32_t round) const {
  return number(blocks(rank).output[slice_chunk / n_chunks_], slice_chunk % n_chunks_, round);
}

Result<void> CheckMemory::may_read(int rank, const Slice& slice, const Cell& cell) const {
  const bool is_input = slice.buffer == Buffer::kInput;
  if (!is_input && !cell.stored) return wrong(slice_text(slice) + " is read before anything was stored there");
  if (is_input && cell.value.sum != contribution(rank, cell.value.chunk))
    return wrong(slice_text(slice) + " is read after it was overwritten in place");
  return {};
}

Result<void> CheckMemory::judge_completion(const Step& step, Value& value) const {
  const int n_sources =
      (step.before.buffer != Buffer::kNone) + (step.recv != -1) + (step.local.buffer != Buffer::kNone);
  if (!table_.reduces) {
    if (n_sources > 1) return wrong("this collective reduces nothing");
    if (step.completes) return wrong("this collective completes no sum");
    return {};
  }
  const bool is_total = value.sum == totals_[value.chunk].sum;
  if (step.completes && !is_total) return wrong("says complete, but the sum is not");
  if (step.completes && value.completed) return wrong("says complete, but another step did so before");
  if (is_total && !step.completes && !value.completed) return wrong("completes the sum without saying so");
  value.completed |= step.completes;
  return {};
}

Result<void> CheckMemory::check_outputs() const {
  std::vector<Value> firsts(totals_.size());  // by chunk: the output of the first rank that has it
  for (int rank = 0; rank < n_ranks_; rank++) {
    const auto n_slices = static_cast<uint32_t>(blocks(rank).output.size() * n_chunks_);
    for (uint32_t round = 0; round < options_.rounds; round++)
      for (uint32_t c = 0; c < n_slices; c++)
        TUTTI_TRY(check_output(rank, c, round, firsts[output_chunk(rank, c, round)]));
  }
  return {};
}

Result<void> CheckMemory::check_output(int rank, uint32_t slice_chunk, uint32_t round, Value& first) const {
  const Cell& cell = cells_[index(places_[static_cast<size_t>(rank)].output_at, slice_chunk, round)];
  const Value& value = cell.value;
  const uint32_t chunk = output_chunk(rank, slice_chunk, round);
  if (first.sum == 0) first = value;
  std::string problem;
  if (!cell.stored) {
    problem = "was never stored";
  } else if (value.sum != totals_[chunk].sum) {
    problem = what_is_wrong(value.sum, chunk);
  } else if (value.order != first.order) {
    problem = "was added up in another order than on other ranks";
  } else if (options_.rank_order && value.order != totals_[chunk].order) {
    problem = "was not added up in the order of ranks";
  }
  if (problem.empty()) return {};
  return wrong(format("rank %d: at the end out[%u] of round %u ", rank, slice_chunk, round) + problem);
}

std::string CheckMemory::what_is_wrong(uint64_t sum, uint32_t chunk) const {
  for (int rank = 0; rank < n_ranks_; rank++) {
    const uint64_t own = contribution(rank, chunk);
    if (sum == own) return format("has only rank %d's contribution", rank);
    if (sum + own == totals_[chunk].sum) return format("lacks rank %d's contribution", rank);
    if (sum - own == totals_[chunk].sum) return format("has rank %d's contribution twice", rank);
  }
  return "does not have every contribution exactly once";
}

}  // namespace tutti
