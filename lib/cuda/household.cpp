#include "cuda/household.h"

#include <utility>

namespace tutti::cuda {
namespace {

constexpr size_t kMarkStride = 128;  // words lie on lines of their own

}  // namespace

// Without words events serve.
Household::Household(Port& port, const std::vector<int>& ranks, bool waits_in_streams)
    : port_(port), meeting_(std::make_shared<Meeting>(ranks)), seats_(ranks.size()) {
  if (!waits_in_streams) return;
  if (const auto made = port.allocate(ranks.size() * kMarkStride)) words_ = static_cast<char*>(made.value());
}

Household::~Household() {
  for (const Seat& seat : seats_)
    if (seat.come != nullptr) port_.destroy_event(seat.come);
  for (const EventRef end : {end_, captured_end_})
    if (end != nullptr) port_.destroy_event(end);
  if (words_ != nullptr) port_.free(words_);
}

uint32_t* Household::word(size_t place) const {
  return reinterpret_cast<uint32_t*>(words_ + place * kMarkStride);
}

// While all use one stream nothing has to wait, so the first ones leave it to the leader to say where they are. Only
// they can do so themselves in a stream that means another one in every thread.
Result<void> Household::announce(size_t place, const Turn& turn) {
  {
    const std::lock_guard lock(mutex_);
    seats_[place].turn = turn;
    seats_[place].is_marked = false;
    streams_.insert(turn.stream_id);
    const bool is_last = ++n_announced_ == seats_.size();
    last_place_ = place;
    if (!port_.is_per_thread(turn.stream) && (is_last || streams_.size() == 1)) return {};
  }
  return mark(place);
}

// Tells how far the rank's stream has come.
Result<void> Household::mark(size_t place) {
  Seat& seat = seats_[place];
  seat.is_marked = true;
  if (has_words(seat.turn)) {
    const WordOperation come{word(place), 1};
    return port_.words(&come, 1, seat.turn.stream);
  }
  return record(&seat.come, seat.turn.stream);
}

Result<void> Household::record(EventRef* event, StreamRef stream) {
  if (*event == nullptr) {
    TUTTI_TRY_ASSIGN(*event, port_.create_event());
  }
  return port_.record(*event, stream);
}

Result<void> Household::enqueue(size_t place, uint64_t round, const Arrivals& everyone, const EnqueueAll& enqueue_all) {
  const Turn turn = seats_[place].turn;
  {
    const std::lock_guard lock(mutex_);
    if (last_round_ < round) {
      last_round_ = round;
      failure_.reset();
      auto enqueued = enqueue_once(place, everyone, enqueue_all);
      if (!enqueued) failure_ = std::move(enqueued).error();
    }
    if (failure_) return *failure_;
    if (turn.stream_id == leading_.stream_id) return {};
  }
  return port_.wait(turn.stream, turn.is_captured ? captured_end_ : end_);
}

// The last one's stream leads, which nobody has marked, also if another rank is the first to see that all have come.
Result<void> Household::enqueue_once(size_t place, const Arrivals& everyone, const EnqueueAll& enqueue_all) {
  n_announced_ = 0;
  streams_.clear();
  const size_t leader = port_.is_per_thread(seats_[last_place_].turn.stream) ? place : last_place_;
  leading_ = seats_[leader].turn;
  TUTTI_TRY(wait_for_others(leader));
  TUTTI_TRY(enqueue_all(everyone, leading_.stream));
  return record(leading_.is_captured ? &captured_end_ : &end_, leading_.stream);
}

// What is marked in the leader's own stream, too, where words have to be taken back.
Result<void> Household::wait_for_others(size_t leader) {
  std::vector<WordOperation> waits, resets;
  for (size_t place = 0; place < seats_.size(); place++) {
    const Seat& seat = seats_[place];
    if (seat.turn.is_captured != leading_.is_captured)
      return Error{
          Code::kInvalidUsage,
          format("rank %d's stream is captured and rank %d's is not: ranks of a process that share a GPU are "
                 "captured together",
                 ranks()[seat.turn.is_captured ? place : leader], ranks()[seat.turn.is_captured ? leader : place])};
    if (!seat.is_marked) {
      if (seat.turn.stream_id == leading_.stream_id) continue;
      TUTTI_TRY(mark(place));
    }
    if (!has_words(seat.turn)) {
      TUTTI_TRY(port_.wait(leading_.stream, seat.come));
      continue;
    }
    waits.push_back({word(place), 1, true});
    resets.push_back({word(place), 0});
  }
  if (waits.empty()) return {};
  waits.insert(waits.end(), resets.begin(), resets.end());
  return port_.words(waits.data(), static_cast<int>(waits.size()), leading_.stream);
}

Result<bool> Resident::meet(const Operation& operation, const Turn& turn) {
  if (!std::exchange(is_coming_, true)) TUTTI_TRY(household_->announce(place_, turn));
  TUTTI_TRY_ASSIGN(const bool has_met, attendee_.come(operation, true));
  is_coming_ = !has_met;
  return has_met;
}

}  // namespace tutti::cuda
