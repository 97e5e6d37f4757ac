// Planner: deciding.
#include <algorithm>
#include <bit>
#include <utility>

#include "base/sort.h"
#include "plan/planner.h"

namespace tutti {
namespace {

// So many ranks still talk to each other directly; n * n links are too many one day.
constexpr int kFewRanks = 16;
// Plans that are worse than the best by more than this on paper are not tried out, nor are more than so many. Of ranks
// that run ahead of others paper says less: nobody waits for hops.
constexpr double kClose = 2, kCloseRunningAhead = 4;
// A winner is looked at again after so many looks' worth of operations, and ever more seldom while it goes on winning.
constexpr int64_t kPatience = 100, kMostPatience = 100'000;
// By how much another time differs, and how many looks in a row have to say so: a stranger may be at work for a while.
constexpr double kDiffers = 1.3;
constexpr int kMostDoubts = 3;
// A program of a few operations has nothing to gain from measuring.
constexpr int kOperationsBeforeMeasuring = 16;

bool has_algorithms(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kAllGather:
    case Collective::kReduceScatter: return true;
    default: return false;
  }
}

}  // namespace

Result<Ways> parse_ways(const std::string& name) {
  for (const Ways ways : {Ways::kBoth, Ways::kCopy, Ways::kLend})
    if (name == ways_name(ways)) return ways;
  return Error{Code::kInvalidUsage,
               "TUTTI_PROTO=" + name + " is not valid: give copy or lend, or unset it to have both tried"};
}

const char* ways_name(Ways ways) {
  return ways == Ways::kBoth ? "" : ways == Ways::kCopy ? "copy" : "lend";
}

void Planner::start(const Ground& ground, Tuning tuning, bool races, Ways ways) {
  ground_ = ground;
  tuning_ = std::move(tuning);
  races_ = races;
  ways_ = ways;
}

bool Planner::sums_in_one_place(const Call& call) const {
  if (!traits(call.collective).reduces) return false;
  if (deterministic_) return true;
  // One addition per sum rounds once, whoever makes it; and the extremes are not rounded.
  if (n_ranks_ <= 2 || call.op == RedOp::kMin || call.op == RedOp::kMax) return false;
  return is_small_float(call.dtype);
}

SizeClass Planner::class_of(const Call& call, uint64_t bytes) const {
  return {call.collective, sums_in_one_place(call), false, static_cast<uint8_t>(std::bit_width(bytes))};
}

double Planner::predict(Collective collective, Plan plan, uint64_t bytes) const {
  return price_of(load_of(collective, plan, bytes, ground_), tuning_.prices);
}

// All algorithms that give right results for the call.
std::vector<Plan> Planner::algorithms_for(const Call& call) const {
  if (call.collective == Collective::kFinalize) return {{Algo::kTree, kMostLanes}};
  if (!has_algorithms(call.collective)) return {{Algo::kAuto, 1}};
  if (n_ranks_ == 1) return {{Algo::kDirect, 1}};
  const bool one_place = sums_in_one_place(call), all_reduce = call.collective == Collective::kAllReduce;
  std::vector<Plan> plans;
  if (one_place || n_ranks_ <= kFewRanks) {
    plans.push_back({Algo::kDirect, 1});
    if (all_reduce) plans.insert(plans.end(), {{Algo::kDirect, 2}, {Algo::kOneShot, 1}});
    if (all_reduce && n_ranks_ > 2) plans.insert(plans.end(), {{Algo::kStar, 1}});  // two need one hop
    if (call.collective == Collective::kBroadcast) plans.insert(plans.end(), {{Algo::kDirect, 2}});
  }
  if (one_place) return plans;
  const bool rooted = traits(call.collective).has_root;
  plans.insert(plans.end(), {{Algo::kTree, 1}, {Algo::kRing, 1}});
  if (all_reduce || rooted) plans.push_back({Algo::kTree, 2});
  if (!rooted) plans.push_back({Algo::kRing, 2});
  if (all_reduce) plans.push_back({Algo::kHalving, 1});
  if (all_reduce && n_ranks_ > 2) plans.push_back({Algo::kDoubling, 1});  // for two the same as one-shot
  // Between hosts that have several ranks each.
  if (all_reduce && hosts() > 1 && hosts() < static_cast<size_t>(n_ranks_))
    plans.insert(plans.end(), {{Algo::kHierarchical, 1}, {Algo::kHierarchical, 2}});
  return plans;
}

// Its lanes as the model says: a forced algorithm gives the same bits always.
std::vector<Plan> Planner::forced_plan(const Call& call, uint64_t bytes) const {
  const Plan one{forced_, 1}, two{forced_, 2};
  return {predict(call.collective, two, bytes) < predict(call.collective, one, bytes) ? two : one};
}

std::vector<Plan> Planner::plans_for(const Call& call, uint64_t bytes) const {
  const bool one_place = forced_ == Algo::kOneShot || forced_ == Algo::kDirect || forced_ == Algo::kStar;
  const bool may_force = one_place || !sums_in_one_place(call);
  const bool forced = forced_ != Algo::kAuto && has_algorithms(call.collective) && may_force;
  std::vector<Plan> plans;
  for (Plan plan : forced ? forced_plan(call, bytes) : algorithms_for(call)) {
    const bool copies_always = plan.algo == Algo::kOneShot && call.collective == Collective::kAllReduce;
    const bool may_lend = n_ranks_ > 1 && bytes >= ground_.lend_from_bytes && !copies_always;
    if (ways_ != Ways::kLend || !may_lend) plans.push_back(plan);
    plan.lends = true;
    if (ways_ != Ways::kCopy && may_lend) plans.push_back(plan);
  }
  return plans;
}

Choice Planner::decide(const Call& call, uint64_t bytes) const {
  Choice choice;
  choice.never_lends = ways_ == Ways::kCopy;
  choice.runs_ahead = traits(call.collective).has_root;
  // All sizes of a class share the decision, so they share the size that it is made for.
  const uint64_t typical_bytes = std::bit_floor(bytes);
  for (const Plan plan : plans_for(call, typical_bytes))
    choice.candidates.push_back({plan, predict(call.collective, plan, typical_bytes)});
  sort_stably(choice.candidates.begin(), choice.candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.predicted_ns < b.predicted_ns; });
  const Candidate& best = choice.candidates[0];
  choice.plan = best.plan;
  if (choice.candidates.size() == 1 || bytes == 0) return choice;
  choice.why = Choice::Why::kPredicted;
  const SizeClass size_class = class_of(call, bytes);
  if (recall(choice, size_class, false) || recall(choice, size_class, true)) return choice;
  start_race(choice, best.predicted_ns);
  return choice;
}

void Planner::start_race(Choice& choice, double expected_ns) const {
  std::vector<Plan> entrants;
  const double best_ns = choice.candidates[0].predicted_ns;
  const double close = choice.runs_ahead ? kCloseRunningAhead : kClose;
  for (const Candidate& candidate : choice.candidates)
    if (candidate.predicted_ns < close * best_ns) entrants.push_back(candidate.plan);
  if (entrants.size() < 2) return;
  choice.why = Choice::Why::kNotTried;
  if (races_) choice.race.emplace(entrants, expected_ns, choice.runs_ahead);
}

// Results may be of a library that had other plans: those are passed over.
bool Planner::take_results(Choice& choice, std::span<const Measured> results, Choice::Why why) const {
  choice.race.reset();
  bool found = false;
  Measured won;
  for (const Measured& result : results)
    for (Candidate& candidate : choice.candidates) {
      if (!(candidate.plan == result.plan)) continue;
      candidate.measured_ns = result.ns;
      if (found) continue;
      found = true;
      choice.plan = result.plan;
      won = result;
    }
  if (!found) return false;
  choice.why = why;
  choice.patience = won.plan == choice.won.plan ? std::min(2 * choice.patience, kMostPatience) : kPatience;
  choice.won = won;
  // What is remembered may be of other circumstances: then the first look comes at once.
  if (races_) choice.operations_left = why == Choice::Why::kRemembered ? 0 : kPatience;
  return true;
}

bool Planner::recall(Choice& choice, SizeClass size_class, bool registered) const {
  size_class.registered = registered;
  const auto found = tuning_.raced.find(size_class);
  if (found == tuning_.raced.end() || !take_results(choice, found->second, Choice::Why::kRemembered)) return false;
  choice.registered = registered;
  return true;
}

void Planner::look_again(Choice& choice) const {
  choice.race.emplace(std::span(&choice.won.plan, 1), static_cast<double>(choice.won.ns), choice.runs_ahead);
}

void Planner::end_look(Choice& choice, SizeClass size_class) const {
  const Race look = *std::exchange(choice.race, std::nullopt);
  const auto now_ns = static_cast<double>(look.look_ns()), won_ns = static_cast<double>(choice.won.ns);
  choice.operations_left = choice.patience * look.operations_per_turn();
  if (look.was_registered() != choice.registered) {
    choice.doubts = 0;
    if (!recall(choice, size_class, look.was_registered())) start_race(choice, now_ns);
    return;
  }
  choice.doubts = now_ns > kDiffers * won_ns || kDiffers * now_ns < won_ns ? choice.doubts + 1 : 0;
  if (choice.doubts == 0) return;
  choice.operations_left = 0;
  if (choice.doubts < kMostDoubts) return;
  choice.doubts = 0;
  start_race(choice, now_ns);
}

Choice& Planner::choice(const Call& call, uint64_t bytes) {
  const auto [found, is_new] = choices_.try_emplace(class_of(call, bytes));
  if (is_new) found->second = decide(call, bytes);
  return found->second;
}

bool Planner::wants_prices(const Choice& choice) {
  return !tuning_.probed && choice.race && ++waited_ > kOperationsBeforeMeasuring;
}

void Planner::take_prices(const Prices& prices) {
  tuning_.prices = prices;
  tuning_.probed = has_news_ = true;
  choices_.clear();
}

void Planner::begin_turn(Choice& choice) {
  if (!choice.race->is_look()) choice.why = Choice::Why::kRacing;
  choice.plan = choice.race->current();
  choice.operations_left = choice.race->operations_left() - 1;
}

// Times of sizes that share a class are made comparable by what the size should cost.
void Planner::record(Choice& choice, const Call& call, uint64_t bytes, int64_t ns, bool registered) {
  const uint64_t typical_bytes = std::bit_floor(bytes);
  if (bytes == typical_bytes) return choice.race->record(ns, registered);
  const double share =
      predict(call.collective, choice.plan, typical_bytes) / predict(call.collective, choice.plan, bytes);
  choice.race->record(static_cast<int64_t>(static_cast<double>(ns) * share), registered);
}

void Planner::end_round(Choice& choice, const Call& call, uint64_t bytes, const Race::News& agreed) {
  if (!choice.race->end_round(agreed)) return;
  SizeClass size_class = class_of(call, bytes);
  if (choice.race->is_look()) return end_look(choice, size_class);
  choice.registered = size_class.registered = choice.race->was_registered();
  const auto results = choice.race->results();
  take_results(choice, results, Choice::Why::kRaced);
  tuning_.raced[size_class] = results;
  has_news_ = true;
}

}  // namespace tutti
