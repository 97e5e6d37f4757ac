#include "plan/race.h"

#include <algorithm>

#include "base/sort.h"

namespace tutti {
namespace {

// What one plan's turn may take: long enough to see past a disturbance, short enough to waste little.
constexpr double kTurnNs = 1'000'000;
constexpr int kFewest = 2, kMost = 50, kMostRunningAhead = 200;
// The first operation of a plan connects links, and the caches are another plan's.
constexpr int kWarmUps = 1;
// Operations of this length leave nothing of each other in the caches, and one says enough: a dozen plans for 64 MiB
// would take seconds else.
constexpr double kLongNs = 4'000'000;

int to_count(double expected_ns, bool runs_ahead) {
  if (expected_ns >= kLongNs) return 1;
  const int most = runs_ahead ? kMostRunningAhead : kMost;
  return static_cast<int>(std::clamp<double>(kTurnNs / std::max(1.0, expected_ns), kFewest, most));
}

// After a round, by how much of the best time an entrant is behind that will hardly win any more. In one turn of short
// operations, or of a single long one, an interruption can make that of the best one; and what lets ranks run ahead of
// others may need some turns until they do: a broadcast of 64 bytes to 3 ranks over TCP 13 us then, before it 45.
constexpr double kFarBehind = 1.33, kFarBehindAtOnce = 3;

}  // namespace

Race::Race(std::span<const Plan> entrants, double expected_ns, bool runs_ahead)
    : n_entrants_(std::min(entrants.size(), kMostEntrants)),
      counted_(to_count(expected_ns, runs_ahead)),
      runs_ahead_(runs_ahead) {
  for (size_t i = 0; i < n_entrants_; i++) entrants_[i].plan = entrants[i];
}

int Race::operations_per_turn() const {
  return counted_ + (round_ > 0 && counted_ == 1 ? 0 : kWarmUps);
}

void Race::record(int64_t ns, bool registered) {
  all_registered_ = all_registered_ && registered;
  operations_++;
  if (operations_ > operations_per_turn() - counted_) entrants_[at_].turn_ns += ns;
  if (operations_ < operations_per_turn()) return;
  at_++;
  go_on();
}

void Race::go_on() {
  operations_ = 0;
  while (at_ < n_entrants_ && entrants_[at_].dropped) at_++;
}

// The mean of a turn: where ranks share CPUs, one operation's time says more of whose turn it was to run.
Race::News Race::news() const {
  News news{};
  for (size_t i = 0; i < n_entrants_; i++) news[i] = entrants_[i].turn_ns / counted_;
  news.back() = all_registered_ ? 0 : 1;
  return news;
}

// Disturbances only ever slow down, so the best of all rounds counts; but of ranks that run ahead of others the median,
// whose best is luck.
int64_t Race::judge(Entrant& entrant) const {
  const auto rounds = std::span(entrant.rounds).first(static_cast<size_t>(round_) + 1);
  std::sort(rounds.begin(), rounds.end());
  return rounds[runs_ahead_ ? static_cast<size_t>(round_) / 2 : 0];
}

bool Race::end_round(const News& agreed) {
  was_registered_ = agreed.back() == 0;
  all_registered_ = true;
  int64_t best_ns = INT64_MAX;
  for (size_t i = 0; i < n_entrants_; i++) {
    Entrant& entrant = entrants_[i];
    entrant.turn_ns = 0;
    if (entrant.dropped) continue;
    entrant.rounds[static_cast<size_t>(round_)] = agreed[i];
    entrant.agreed_ns = judge(entrant);
    best_ns = std::min(best_ns, entrant.agreed_ns);
  }
  const bool may_be_disturbed = runs_ahead_ || (round_ == 0 && (counted_ == kMost || counted_ == 1));
  const double far_ns = static_cast<double>(best_ns) * (may_be_disturbed ? kFarBehindAtOnce : kFarBehind);
  int running = 0;
  for (Entrant& entrant : entrants()) {
    entrant.dropped = entrant.dropped || static_cast<double>(entrant.agreed_ns) > far_ns;
    running += !entrant.dropped;
  }
  at_ = 0;
  go_on();
  return ++round_ == kRounds || running == 1;
}

std::vector<Measured> Race::results() const {
  std::vector<Measured> results;
  // Who dropped out comes last: its one round says less.
  for (const bool dropped : {false, true}) {
    const auto begin = static_cast<ptrdiff_t>(results.size());
    for (const Entrant& entrant : entrants())
      if (entrant.dropped == dropped) results.push_back({entrant.plan, entrant.agreed_ns});
    sort_stably(results.begin() + begin, results.end(),
                [](const Measured& a, const Measured& b) { return a.ns < b.ns; });
  }
  return results;
}

}  // namespace tutti
