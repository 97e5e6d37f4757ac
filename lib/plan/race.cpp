#include "plan/race.h"

#include <algorithm>

namespace tutti {
namespace {

// What one plan's turn may take: long enough to see past a disturbance, short enough to waste little.
constexpr double kTurnNs = 500'000;
constexpr int kFewest = 3, kMost = 32;
// The first operations of a plan connect links and meet cold memory; later the caches are another plan's.
constexpr int kFirstWarmUps = 2, kWarmUps = 1;
// After a round: it will hardly win any more.
bool is_far_behind(int64_t ns, int64_t best_ns) {
  return ns > best_ns + best_ns / 3;
}

// A third are faster: disturbances only ever slow down.
int64_t typical(std::vector<int64_t> values) {
  const auto third = values.begin() + static_cast<ptrdiff_t>(values.size() / 3);
  std::nth_element(values.begin(), third, values.end());
  return *third;
}

}  // namespace

Race::Race(std::vector<Plan> entrants, double expected_ns)
    : counted_(static_cast<int>(std::clamp<double>(kTurnNs / std::max(1.0, expected_ns), kFewest, kMost))) {
  for (const Plan plan : entrants) entrants_.push_back({plan, {}});
}

void Race::record(int64_t ns) {
  const int warm_ups = round_ == 0 ? kFirstWarmUps : kWarmUps;
  if (operations_++ >= warm_ups) entrants_[at_].ns.push_back(ns);
  if (operations_ < warm_ups + counted_) return;
  at_++;
  go_on();
}

void Race::go_on() {
  operations_ = 0;
  while (at_ < entrants_.size() && entrants_[at_].dropped) at_++;
}

std::vector<int64_t> Race::times() const {
  std::vector<int64_t> times;
  for (const Entrant& entrant : entrants_) times.push_back(entrant.dropped ? entrant.agreed_ns : typical(entrant.ns));
  return times;
}

bool Race::end_round(std::span<const int64_t> times) {
  int64_t best_ns = INT64_MAX;
  for (size_t i = 0; i < entrants_.size(); i++) {
    entrants_[i].agreed_ns = times[i];
    if (!entrants_[i].dropped) best_ns = std::min(best_ns, times[i]);
  }
  int running = 0;
  for (Entrant& entrant : entrants_) {
    entrant.dropped = entrant.dropped || is_far_behind(entrant.agreed_ns, best_ns);
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
    for (const Entrant& entrant : entrants_)
      if (entrant.dropped == dropped) results.push_back({entrant.plan, entrant.agreed_ns});
    std::stable_sort(results.begin() + begin, results.end(),
                     [](const Measured& a, const Measured& b) { return a.ns < b.ns; });
  }
  return results;
}

}  // namespace tutti
