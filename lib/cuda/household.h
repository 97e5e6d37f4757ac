// This header: ranks of one process that share a GPU. Their streams may share a hardware queue as well, in which what
// waits holds up all that comes after it, so none may wait for what another one of them has yet to enqueue. An
// operation of theirs is enqueued by the first of them for all, in its stream, once all have come: that stream waits
// for the others', and they wait for it. One thread makes all the calls, because threads that call CUDA at once wait
// for its locks: 8 ranks on an H100 took 75 us where each told its stream to wait. A rank's call returns when all is
// enqueued, so a thread that holds several ranks groups its calls.
//
// Threading: a Household is shared by its ranks; a Resident belongs to one of them.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/meeting.h"

namespace tutti::cuda {

// Puts into a stream what everybody has called, in the order of the household's ranks.
using EnqueueAll = std::function<Result<void>(const Arrivals&, StreamRef)>;

class Household {
 public:
  Household(GpuStreams& streams, const std::vector<int>& ranks);
  const std::vector<int>& ranks() const { return meeting_->ranks(); }

 private:
  friend class Resident;
  struct Seat {
    explicit Seat(GpuStreams& streams) : come(streams) {}
    Turn turn;
    OwnedEvent come;  // how far the stream has come
  };

  // Always the same thread, which has what CUDA keeps of the streams in its cache.
  static constexpr size_t kLeader = 0;

  bool may_go_on(size_t place, uint64_t round) const {
    return place == kLeader || enqueued_.load(std::memory_order_acquire) >= round;
  }
  Result<void> announce(size_t place, const Turn& turn);
  Result<void> enqueue(size_t place, uint64_t round, const Arrivals& everyone, const EnqueueAll& enqueue_all);
  Result<void> enqueue_once(const Arrivals& everyone, const EnqueueAll& enqueue_all);
  Result<void> check_captured_alike() const;
  std::vector<size_t> other_streams() const;

  GpuStreams& streams_;
  const std::shared_ptr<Meeting> meeting_;
  std::deque<Seat> seats_;  // the rank's own from when it announces itself until all have
  // The last round that is enqueued; the leader's release, after it has written what follows, pairs with the others'
  // acquire.
  std::atomic<uint64_t> enqueued_{0};
  Turn leading_;
  std::optional<Error> failure_;
  OwnedEvent end_, captured_end_;  // which of them, depends on the round
};

class Resident {
 public:
  Resident(std::shared_ptr<Household> household, int rank)
      : household_(std::move(household)),
        place_(household_->meeting_->place_of(rank)),
        attendee_(household_->meeting_, rank) {}

  // Of the leader: true when all have come. Of the others: when it has enqueued what they called. Else it is to be
  // called again with this operation.
  Result<bool> meet(const Operation& operation, const Turn& turn);
  // Then. The leader enqueues, the others learn what became of it.
  Result<void> enqueue(const EnqueueAll& enqueue_all) {
    return household_->enqueue(place_, attendee_.round(), attendee_.everyone(), enqueue_all);
  }
  Attendee& attendee() { return attendee_; }
  // Recorded behind the last operation that was not captured; null before.
  EventRef end() const { return household_->end_.get(); }

 private:
  const std::shared_ptr<Household> household_;
  const size_t place_;
  MeetingAttendee attendee_;
  bool is_coming_ = false, have_all_come_ = false;
};

}  // namespace tutti::cuda
