#include "cuda/meeting.h"

#include <utility>

#include "debug/call.h"

namespace tutti::cuda {

Result<std::shared_ptr<const Meeting::Round>> Meeting::arrive(int rank, uint64_t round, Arrival arrival) {
  std::unique_lock lock(mutex_, std::defer_lock);
  for (Pause pause; !lock.try_lock();) pause.wait();  // it is held for a moment only
  std::shared_ptr<Round>& entry = rounds_[round];
  if (entry == nullptr) entry = std::make_shared<Round>();
  const std::shared_ptr<Round> r = entry;
  const size_t place = place_of(rank);
  called_[place].store(round, std::memory_order_relaxed);
  for (const size_t other : left_)
    if (called_[other] < round) return has_left(ranks_[other], called_[other]);
  if (r->mismatch) return *r->mismatch;
  r->arrivals.resize(ranks_.size());
  r->arrivals[place] = std::move(arrival);
  r->mismatch = compare(*r, round, place);
  const bool is_last = ++r->n_come == ranks_.size();
  if (is_last) rounds_.erase(round);
  if (is_last || r->mismatch) r->is_settled.store(true, std::memory_order_release);
  if (r->mismatch) return *r->mismatch;
  return std::shared_ptr<const Round>(r);
}

bool Meeting::withdraw(uint64_t round, const Error& why) {
  const std::lock_guard lock(mutex_);
  const auto found = rounds_.find(round);
  if (found == rounds_.end()) return false;
  if (!found->second->mismatch) found->second->mismatch = why;
  found->second->is_settled.store(true, std::memory_order_release);
  return true;
}

bool Meeting::leave(int rank) {
  const std::lock_guard lock(mutex_);
  left_.push_back(place_of(rank));
  n_left_++;
  const uint64_t mine = called_by(rank);
  return std::any_of(called_.begin(), called_.end(), [&](const auto& its) { return its > mine; });
}

// Compares with one of the ranks that have come before, whose calls are alike.
std::optional<Error> Meeting::compare(const Round& round, uint64_t number, size_t place) const {
  size_t other = 0;
  while (other < ranks_.size() && (other == place || called_[other].load(std::memory_order_relaxed) < number)) other++;
  if (other == ranks_.size()) return std::nullopt;
  const auto [a, b] = std::minmax(place, other);
  if (to_call(round.arrivals[a].operation) == to_call(round.arrivals[b].operation)) return std::nullopt;
  const auto account = [&](size_t at) {
    const Operation& operation = round.arrivals[at].operation;
    Account made{ranks_[at], to_call(operation)};
    made.call.sequence = number;
    if (operation.unequal != nullptr) made.blocks = operation.unequal->elems;
    return made;
  };
  return disagreement(account(a), account(b));
}

Result<bool> MeetingAttendee::pass(const Operation& operation) {
  TUTTI_TRY(meeting_->arrive(rank_, ++round_, {operation, false}));
  return true;
}

Result<bool> MeetingAttendee::come(const Operation& operation, bool is_reachable) {
  if (at_ == nullptr) {
    TUTTI_TRY_ASSIGN(at_, meeting_->arrive(rank_, ++round_, {operation, is_reachable}));
  }
  if (!at_->is_settled.load(std::memory_order_acquire)) return false;
  const auto met = std::exchange(at_, nullptr);
  if (met->mismatch) return *met->mismatch;
  everyone_ = std::shared_ptr<const Arrivals>(met, &met->arrivals);
  return true;
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
