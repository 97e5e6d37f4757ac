// This header: ranks of one process that share a GPU. Their streams may share a hardware queue as well, in which what
// waits holds up all that comes after it, so none may wait for what another one of them has yet to enqueue. An
// operation of theirs is enqueued by one of them for all, in its stream, once all have come: that stream waits for the
// others', and they wait for it. A rank's call returns when that is done, so a thread that holds several ranks groups
// its calls.
//
// Threading: a Household is shared by its ranks; a Resident belongs to one of them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "cuda/meeting.h"

namespace tutti::cuda {

// Puts into a stream what everybody has called, in the order of the household's ranks.
using EnqueueAll = std::function<Result<void>(const Arrivals&, StreamRef)>;

class Household {
 public:
  Household(Port& port, const std::vector<int>& ranks, bool waits_in_streams);
  ~Household();
  Household(const Household&) = delete;
  const std::vector<int>& ranks() const { return meeting_->ranks(); }

 private:
  friend class Resident;
  struct Seat {
    Turn turn;
    bool is_marked = false;
    EventRef come = nullptr;
  };

  Result<void> announce(size_t place, const Turn& turn);
  Result<void> enqueue(size_t place, uint64_t round, const Arrivals& everyone, const EnqueueAll& enqueue_all);
  Result<void> enqueue_once(size_t place, const Arrivals& everyone, const EnqueueAll& enqueue_all);
  Result<void> mark(size_t place);
  Result<void> wait_for_others(size_t leader);
  Result<void> record(EventRef* event, StreamRef stream);
  uint32_t* word(size_t place) const;
  // A graph's branches may be one after the other in a stream, where words would wait for ever.
  bool has_words(const Turn& turn) const { return words_ != nullptr && !turn.is_captured; }

  Port& port_;
  const std::shared_ptr<Meeting> meeting_;
  std::vector<Seat> seats_;  // the rank's own from when it announces itself until all have
  char* words_ = nullptr;    // by place: has come. Null where streams do not wait for words
  std::mutex mutex_;         // all that follows
  size_t n_announced_ = 0;   // of the round at hand
  size_t last_place_ = 0;    // who announced itself last
  std::set<uint64_t> streams_;
  // Of the last round:
  uint64_t last_round_ = 0;
  Turn leading_;
  std::optional<Error> failure_;
  EventRef end_ = nullptr, captured_end_ = nullptr;  // which of them, depends on the round
};

class Resident {
 public:
  Resident(std::shared_ptr<Household> household, int rank)
      : household_(std::move(household)),
        place_(household_->meeting_->place_of(rank)),
        attendee_(household_->meeting_, rank) {}

  // True when all have come; else it is to be called again with this operation.
  Result<bool> meet(const Operation& operation, const Turn& turn);
  // Then. The first to call it enqueues, the others learn what became of it.
  Result<void> enqueue(const EnqueueAll& enqueue_all) {
    return household_->enqueue(place_, attendee_.round(), attendee_.everyone(), enqueue_all);
  }
  // Recorded behind the last operation that was not captured; null before.
  EventRef end() const { return household_->end_; }

 private:
  const std::shared_ptr<Household> household_;
  const size_t place_;
  MeetingAttendee attendee_;
  bool is_coming_ = false;
};

}  // namespace tutti::cuda
