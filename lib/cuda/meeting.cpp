#include "cuda/meeting.h"

#include <utility>

#include "debug/call.h"

namespace tutti::cuda {

Error different_calls(int rank, const Call& one, int other_rank, const Call& other, const Operation* its,
                      const Operation* the_others) {
  const auto blocks = [](const Operation* operation) -> std::span<const uint64_t> {
    if (operation == nullptr || operation->unequal == nullptr) return {};
    return operation->unequal->elems;
  };
  return {
      Code::kInvalidUsage,
      format("ranks called different operations: rank %d %s, rank %d %s%s; all ranks have to call the same ones in the "
             "same order",
             rank, to_text(one).c_str(), other_rank, to_text(other).c_str(),
             blocks_text(rank, one, blocks(its), other_rank, other, blocks(the_others)).c_str()),
      other_rank};
}

Result<void> Meeting::arrive(int rank, uint64_t round, Arrival arrival, bool will_take) {
  const std::lock_guard lock(mutex_);
  Round& r = rounds_[round];
  r.arrivals->resize(ranks_.size());
  r.has_come.resize(ranks_.size());
  (*r.arrivals)[place_of(rank)] = std::move(arrival);
  r.has_come[place_of(rank)] = true;
  r.n_come++;
  TUTTI_TRY(check_alike(r));
  if (!will_take && r.n_come == ranks_.size()) rounds_.erase(round);
  return {};
}

// Before all have come, because who calls something else may be waiting for somebody elsewhere.
Result<void> Meeting::check_alike(const Round& round) const {
  size_t first = 0;
  while (!round.has_come[first]) first++;
  const Operation& its = (*round.arrivals)[first].operation;
  const Call one = to_call(its);
  for (size_t r = first + 1; r < ranks_.size(); r++) {
    const Operation& the_others = (*round.arrivals)[r].operation;
    const Call other = to_call(the_others);
    if (!round.has_come[r] || other == one) continue;
    return different_calls(ranks_[first], one, ranks_[r], other, &its, &the_others);
  }
  return {};
}

Result<std::shared_ptr<const Arrivals>> Meeting::take(uint64_t round) {
  const std::lock_guard lock(mutex_);
  Round& r = rounds_[round];
  TUTTI_TRY(check_alike(r));
  if (r.n_come < ranks_.size()) return std::shared_ptr<const Arrivals>();
  const std::shared_ptr<const Arrivals> everyone = r.arrivals;
  if (++r.n_taken == ranks_.size()) rounds_.erase(round);
  return everyone;
}

Result<bool> MeetingAttendee::pass(const Operation& operation) {
  TUTTI_TRY(meeting_->arrive(rank_, ++round_, {operation, false}, false));
  return true;
}

Result<bool> MeetingAttendee::come(const Operation& operation, bool is_reachable) {
  if (!std::exchange(is_waiting_, true)) TUTTI_TRY(meeting_->arrive(rank_, ++round_, {operation, is_reachable}, true));
  TUTTI_TRY_ASSIGN(everyone_, meeting_->take(round_));
  is_waiting_ = everyone_ == nullptr;
  return !is_waiting_;
}

Result<void> add_move(Launcher& launcher, const Arrivals& everyone, const Move& move, Range range) {
  const Operation& operation = everyone[0].operation;
  const size_t elem_bytes = dtype_bytes(operation.dtype);
  std::vector<const void*> src;
  std::vector<void*> dst;
  for (size_t r = 0; r < everyone.size(); r++) {
    const Operation& its = everyone[r].operation;
    if (move.from == kAllRanks || move.from == static_cast<int>(r))
      src.push_back(static_cast<const char*>(its.input) + (move.from_elem + range.begin) * elem_bytes);
    if (move.to != kAllRanks && move.to != static_cast<int>(r)) continue;
    // Every rank has its own places for unequal blocks.
    const bool is_placed = its.unequal != nullptr && its.collective == Collective::kAllGather;
    const uint64_t to = is_placed ? its.unequal->at[static_cast<size_t>(move.from)] : move.to_elem;
    dst.push_back(static_cast<char*>(its.output) + (to + range.begin) * elem_bytes);
  }
  return launcher.add(range.elems, divisor_of(operation, static_cast<int>(everyone.size())), src, dst);
}

}  // namespace tutti::cuda
