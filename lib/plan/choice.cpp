// Planner: the choice of an algorithm.
#include <algorithm>

#include "base/sort.h"
#include "plan/planner.h"

namespace tutti {
namespace {

// Up to this many ranks talk to each other directly; beyond that n * n links are too many. In shared memory links are
// cheap, and the alternative, a chain, is slow if ranks outnumber the CPUs: with 20 ranks on 2 CPUs, direct and chain
// took 107 and 896 us for 8 B of bfloat16, 47 and 132 ms for 8 MB; over TCP 8.8 and 2.9 ms, 173 and 313.
constexpr int kFewRanks = 16, kFewHere = 64;

bool has_algorithms(Collective collective) {
  return own_algo(collective, Algo::kDirect) != Algo::kAuto;
}

// Whether each host's ranks have consecutive numbers, which is how launchers assign them by default.
bool stands_host_by_host(const Layout& layout) {
  return std::all_of(layout.hosts.begin(), layout.hosts.end(), [](const std::vector<int>& ranks) {
    return ranks.back() - ranks.front() == static_cast<int>(ranks.size()) - 1;
  });
}

bool rounds_once(const Call& call) {
  return is_small_float(call.dtype) && call.op != RedOp::kMin && call.op != RedOp::kMax;
}

}  // namespace

// Two values have the same sum in any order, except for which NaN it is. With more floats the sum depends on it: where
// ranks share memory it is the order of ranks, which costs nothing there (two-shot all-reduces are the fastest anyway);
// elsewhere a fixed one.
Planner::Order Planner::order_of(const Call& call) const {
  if (!traits(call.collective).reduces || n_ranks_ <= 2 || !is_float(call.dtype)) return Order::kAny;
  if (deterministic_ || rounds_once(call)) return Order::kRanks;
  if (forced_ != Algo::kAuto) return Order::kFixed;
  return facts_.all_share_memory() && n_ranks_ <= kFewRanks ? Order::kRanks : Order::kFixed;
}

std::vector<Algo> Planner::algorithms_for(const Call& call, Order order) const {
  if (call.collective == Collective::kFinalize) return {Algo::kTree};
  if (!has_algorithms(call.collective)) return {Algo::kAuto};
  if (n_ranks_ == 1) return {Algo::kDirect};
  const bool is_few = n_ranks_ <= (order == Order::kRanks && facts_.all_share_memory() ? kFewHere : kFewRanks);
  std::vector<Algo> fitting;
  for (const Algorithm* algorithm : algorithms()) {
    const bool fits = !algorithm->keeps_rank_order ? order != Order::kRanks
                      : algorithm->meets_all       ? is_few
                                                   : chain_fits(call, order, is_few);
    if (!fits || n_ranks_ < algorithm->least_ranks || (algorithm->is_for_full_hosts && !has_full_hosts())) continue;
    const bool has_racks = facts_.racks.n > 1 && facts_.racks.n < n_ranks_ && facts_.racks.bytes_per_second > 0;
    if (algorithm->is_for_racks && !has_racks) continue;
    if (algorithm->method(call.collective).build != nullptr) fitting.push_back(algo_named(algorithm->name));
  }
  return fitting;
}

// A chain keeps the order of ranks with two links per rank, but takes two hops per rank, and for small floats twice the
// bytes. Between a few hosts of several ranks each no all-reduce sends less: 2 hosts of 4 ranks took 91 us for 8 KiB at
// 1 Gb/s, and 240 by any other algorithm.
bool Planner::chain_fits(const Call& call, Order order, bool is_few) const {
  if (!is_few) return order == Order::kRanks;
  return call.collective == Collective::kAllReduce && has_full_hosts() && stands_host_by_host(sum_layout_) &&
         !rounds_once(call);
}

// With a fixed order the algorithm must not depend on what may differ between runs, such as the CPUs that ranks are
// bound to. But all algorithms that sum in the order of ranks give the same bits.
std::vector<Algo> Planner::choices_for(const Call& call, uint64_t bytes) const {
  const Order order = order_of(call);
  std::vector<Algo> choices = algorithms_for(call, order);
  const auto in_order = [&](Algo algo) { return algorithm_of(own_algo(call.collective, algo))->keeps_rank_order; };
  const bool forced = forced_ != Algo::kAuto && has_algorithms(call.collective) &&
                      (order != Order::kRanks || algorithm_of(forced_)->keeps_rank_order);
  if (forced) choices = {forced_};
  if (order != Order::kFixed || !has_algorithms(call.collective)) return choices;
  Facts unbound = facts_;
  unbound.machine = facts_.machine.unbound();
  const Algo fixed = priced(call, bytes, choices, unbound)[0].algo;
  if (!in_order(fixed)) return {fixed};
  std::erase_if(choices, [&](Algo algo) { return !in_order(algo); });
  return choices;
}

std::vector<Candidate> Planner::priced(const Call& call, uint64_t bytes, std::span<const Algo> choices,
                                       const Facts& facts) const {
  std::vector<Candidate> candidates;
  candidates.reserve(choices.size());
  for (const Algo algo : choices)
    candidates.push_back({algo, price_ns(rank_cost_of(call.collective, algo, bytes, facts), facts, prices_.prices)});
  sort_stably(candidates, [](const Candidate& a, const Candidate& b) { return a.predicted_ns < b.predicted_ns; });
  return candidates;
}

std::vector<Candidate> Planner::candidates(const Call& call, uint64_t bytes) const {
  return priced(call, bytes, choices_for(call, bytes), facts_);
}

bool Planner::adds_wide(const Call& call) const {
  return order_of(call) == Order::kRanks && rounds_once(call) &&
         !algorithm_of(own_algo(call.collective, call.algo))->meets_all;
}

}  // namespace tutti
