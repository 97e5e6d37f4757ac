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
  // `expected_ns` of one operation: of short ones more are measured, because they are easily disturbed.
  static constexpr size_t kMostEntrants = 8;
  Race(std::span<const Plan> entrants, double expected_ns);

  Plan current() const { return entrants_[at_].plan; }
  void record(int64_t ns);  // of an operation by the current plan
  // The times of this rank in this round, one for each entrant.
  bool round_is_over() const { return at_ == n_entrants_; }
  std::array<int64_t, kMostEntrants> times() const;
  // With the slowest rank's times. True when the race is over: then the fastest comes first in results().
  bool end_round(std::span<const int64_t> times);

  std::vector<Measured> results() const;
  // Of one entrant, what it takes; and how many operations that took to find out.
  bool is_look() const { return n_entrants_ == 1; }
  int64_t look_ns() const { return entrants_[0].agreed_ns; }
  int operations_per_look() const;

 private:
  struct Entrant {
    Plan plan;
    int64_t turn_ns = 0;  // of this round
    int64_t agreed_ns = 0;
    bool dropped = false;
  };
  void go_on();

  static constexpr int kRounds = 4;
  std::span<const Entrant> entrants() const { return {entrants_.data(), n_entrants_}; }
  std::span<Entrant> entrants() { return {entrants_.data(), n_entrants_}; }

  std::array<Entrant, kMostEntrants> entrants_;
  size_t n_entrants_;
  size_t at_ = 0;  // whose turn it is
  int round_ = 0, operations_ = 0;
  int counted_;
};

}  // namespace tutti
