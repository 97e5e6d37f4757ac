// This header: how ranks learn what the others of their group have called, and with which buffers; within one process
// by a Meeting. No rank blocks: those that have come ask again until all have.
//
// Threading: a Meeting is shared by its ranks; an Attendee belongs to one of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cuda/launcher.h"
#include "cuda/moves.h"
#include "exec/wait.h"

namespace tutti::cuda {

class Board;

struct Arrival {
  Operation operation;
  bool is_reachable = false;  // all ranks' devices can use its buffers
};
using Arrivals = std::vector<Arrival>;  // in the order of ranks

// Pauses between two looks at the progress of other threads, which is usually near. Sleeping until woken takes longer.
class Pause {
 public:
  void wait() {
    constexpr int kYields = 1000;
    if (n_ < kSpins + kYields) n_++;
    if (n_ < kSpins)
      pause_cpu();
    else if (n_ < kSpins + kYields)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  int n_ = 0;
};

class Attendee {
 public:
  virtual ~Attendee() = default;
  // For operations that need nothing from the other ranks: a rank that comes later than one with a different operation
  // gets an error. False where others are too far behind: call it again with the same operation.
  virtual Result<bool> pass(const Operation& operation) = 0;
  // True when it is known what all ranks have called, or that their buffers cannot be used where they lie. If false,
  // call it again with the same operation. kInvalidUsage with both calls where two ranks differ, here and in pass().
  virtual Result<bool> come(const Operation& operation, bool is_reachable) = 0;
  const Arrivals& everyone() const { return *everyone_; }

  // What this rank waits with in come() counts for nothing from now on. False if all have come: come() says so.
  virtual bool withdraw(const Error& /*why*/) { return true; }

  // How many operations a rank has called.
  virtual uint64_t called_by(int rank) const = 0;

  // This object as a Board, where the ranks are in several processes; else null.
  virtual Board* board() { return nullptr; }

  // This rank has released the others' memory, and calls nothing more. True if others may have operations that still
  // use this rank's. all_have_left() uses nothing of the rank's communicator.
  virtual bool leave() = 0;
  virtual bool all_have_left() const = 0;

 protected:
  std::shared_ptr<const Arrivals> everyone_;
};

inline Error has_left(int rank, uint64_t called) {
  return {Code::kRemoteError,
          format("rank %d destroyed or finalized its communicator after %llu operations on its GPU", rank,
                 static_cast<unsigned long long>(called)),
          rank};
}

class Meeting {
 public:
  explicit Meeting(std::vector<int> ranks) : ranks_(std::move(ranks)), called_(ranks_.size()) {
    left_.reserve(ranks_.size());  // leaving takes no memory
  }
  size_t place_of(int rank) const {
    return static_cast<size_t>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
  }
  const std::vector<int>& ranks() const { return ranks_; }

  // One operation of all ranks.
  struct Round {
    Arrivals arrivals;
    size_t n_come = 0;
    std::optional<Error> mismatch;
    // All have come, or there is a mismatch. Its release pairs with the acquire of a rank that then reads the rest.
    std::atomic<bool> is_settled{false};
  };
  // kInvalidUsage with both calls where two ranks differ, even before all have come: the rank with another call may be
  // waiting for some rank elsewhere. kRemoteError where a rank has left before.
  Result<std::shared_ptr<const Round>> arrive(int rank, uint64_t round, Arrival arrival);
  // Nobody meets in this round any more. False if all have come.
  bool withdraw(uint64_t round, const Error& why);
  uint64_t called_by(int rank) const { return called_[place_of(rank)].load(std::memory_order_relaxed); }
  bool leave(int rank);  // true if another rank has called more
  bool all_have_left() const { return n_left_ == ranks_.size(); }

 private:
  std::optional<Error> compare(const Round& round, uint64_t number, size_t place) const;

  const std::vector<int> ranks_;
  std::vector<std::atomic<uint64_t>> called_;  // each rank's last round
  std::mutex mutex_;
  std::vector<size_t> left_;                           // places
  std::map<uint64_t, std::shared_ptr<Round>> rounds_;  // those for which not all ranks have come
  std::atomic<size_t> n_left_{0};
};

class MeetingAttendee final : public Attendee {
 public:
  MeetingAttendee(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}

  Result<bool> pass(const Operation& operation) override;
  Result<bool> come(const Operation& operation, bool is_reachable) override;
  bool withdraw(const Error& why) override { return at_ == nullptr || meeting_->withdraw(round_, why); }
  uint64_t called_by(int rank) const override { return meeting_->called_by(rank); }
  bool leave() override { return meeting_->leave(rank_); }
  bool all_have_left() const override { return meeting_->all_have_left(); }
  uint64_t round() const { return round_; }  // how many operations this rank has called

 private:
  const std::shared_ptr<Meeting> meeting_;
  const int rank_;
  uint64_t round_ = 0;
  std::shared_ptr<const Meeting::Round> at_;  // the round in which this rank waits for others
};

// Some elements of a move, read and written directly in all ranks' buffers.
Result<void> add_move(Launcher& launcher, const Arrivals& everyone, const Move& move, Range range);

// An object that ranks of one process share, found by a name that they have told each other.
template <class T, class Make>
std::shared_ptr<T> find_shared(const std::string& name, Make&& make) {
  static auto* mutex = new std::mutex;  // never destroyed: other threads may outlive main
  static auto* all = new std::map<std::string, std::weak_ptr<T>>;
  const std::lock_guard lock(*mutex);
  std::erase_if(*all, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<T> found = (*all)[name].lock();
  if (found == nullptr) (*all)[name] = found = make();
  return found;
}

}  // namespace tutti::cuda
