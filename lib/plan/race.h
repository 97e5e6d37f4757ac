// Which of a few plans is fastest, found out while working: operations of one size class take the plans in turns, a few
// in a row. All ranks count the same operations, so all try the same plan at the same time. After each round they agree
// on the times, the slowest rank's counting, and who is far behind drops out. With one entrant it is a look at how long
// that takes now. Allocates nothing but the results. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/cost.h"

namespace tutti {

class Race {
 public:
  // `expected_ns` of one operation: of short ones more are measured, because they are easily disturbed; and more still
  // where some ranks run ahead of others, which takes a while to become what it is in a long row of operations.
  static constexpr size_t kMostEntrants = 12;
  Race(std::span<const Plan> entrants, double expected_ns, bool runs_ahead);

  Plan current() const { return entrants_[at_].plan; }
  // Of an operation by the current plan. `registered`: all its memory may be read by other ranks where it lies, which
  // decides what is fast.
  void record(int64_t ns, bool registered);
  // This rank's news of the round: a time for each entrant, and last whether there was memory that is not registered.
  // The greatest of all ranks' counts.
  using News = std::array<int64_t, kMostEntrants + 1>;
  bool round_is_over() const { return at_ == n_entrants_; }
  News news() const;
  // With what was agreed on. True when the race is over: then the fastest comes first in results().
  bool end_round(const News& agreed);

  std::vector<Measured> results() const;
  // Of one entrant, what it takes.
  bool is_look() const { return n_entrants_ == 1; }
  int64_t look_ns() const { return entrants_[0].agreed_ns; }
  // How many operations a plan's turn is, in this round.
  int operations_per_turn() const;
  // By the current plan, before the next one's turn.
  int operations_left() const { return operations_per_turn() - operations_; }
  // Of the last round.
  bool was_registered() const { return was_registered_; }

 private:
  static constexpr int kRounds = 4;
  struct Entrant {
    Plan plan;
    int64_t turn_ns = 0;                    // of this round
    std::array<int64_t, kRounds> rounds{};  // agreed on
    int64_t agreed_ns = 0;                  // of all
    bool dropped = false;
  };
  void go_on();
  int64_t judge(Entrant& entrant) const;

  std::span<const Entrant> entrants() const { return {entrants_.data(), n_entrants_}; }
  std::span<Entrant> entrants() { return {entrants_.data(), n_entrants_}; }

  std::array<Entrant, kMostEntrants> entrants_;
  size_t n_entrants_;
  size_t at_ = 0;  // whose turn it is
  int round_ = 0, operations_ = 0;
  int counted_;
  bool runs_ahead_;
  bool all_registered_ = true, was_registered_ = false;
};

}  // namespace tutti
