// Planner: deciding.
#include <algorithm>

#include "base/sort.h"
#include "plan/planner.h"

namespace tutti {
namespace {

// So many ranks still talk to each other directly; n * n links are too many one day.
constexpr int kFewRanks = 16;

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

// Adds up strictly in the order of ranks, whatever the size.
bool keeps_rank_order(Algo algo) {
  return algo == Algo::kDirect || algo == Algo::kOneShot || algo == Algo::kStar;
}

}  // namespace

// Two values have the same sum in any order. Of more floats the sum depends on it: where ranks share memory it is the
// order of ranks, which costs nothing there (two-shot all-reduces are the fastest anyway); elsewhere a fixed one.
Planner::Order Planner::order_of(const Call& call) const {
  if (!traits(call.collective).reduces || n_ranks_ <= 2 || !is_float(call.dtype)) return Order::kAny;
  const bool rounds_once = is_small_float(call.dtype) && call.op != RedOp::kMin && call.op != RedOp::kMax;
  if (deterministic_ || rounds_once) return Order::kRanks;
  if (forced_ != Algo::kAuto) return Order::kFixed;
  return facts_.shares_memory && facts_.hosts == 1 && n_ranks_ <= kFewRanks ? Order::kRanks : Order::kFixed;
}

std::vector<Plan> Planner::algorithms_for(const Call& call, Order order) const {
  if (call.collective == Collective::kFinalize) return {{Algo::kTree, kMostLanes}};
  if (!has_algorithms(call.collective)) return {{Algo::kAuto, 1}};
  if (n_ranks_ == 1) return {{Algo::kDirect, 1}};
  const bool all_reduce = call.collective == Collective::kAllReduce;
  std::vector<Plan> plans;
  if (order == Order::kRanks || n_ranks_ <= kFewRanks) {
    plans.push_back({Algo::kDirect, 1});
    if (all_reduce) plans.insert(plans.end(), {{Algo::kDirect, 2}, {Algo::kOneShot, 1}});
    if (all_reduce && n_ranks_ > 2) plans.insert(plans.end(), {{Algo::kStar, 1}});  // two need one hop
    if (traits(call.collective).has_root) plans.insert(plans.end(), {{Algo::kDirect, 2}});
  }
  if (order == Order::kRanks) return plans;
  const bool rooted = traits(call.collective).has_root;
  plans.insert(plans.end(), {{Algo::kTree, 1}, {Algo::kRing, 1}});
  if (all_reduce || rooted) plans.push_back({Algo::kTree, 2});
  if (!rooted) plans.push_back({Algo::kRing, 2});
  // For two ranks they are the same as a ring and as one-shot.
  if (all_reduce && n_ranks_ > 2) plans.insert(plans.end(), {{Algo::kHalving, 1}, {Algo::kDoubling, 1}});
  // Between hosts that have several ranks each.
  if (all_reduce && hosts() > 1 && hosts() < static_cast<size_t>(n_ranks_))
    plans.insert(plans.end(), {{Algo::kHierarchical, 1}, {Algo::kHierarchical, 2}});
  return plans;
}

// In a fixed order the algorithm must not depend on what a run may have otherwise than another, such as the CPUs that
// ranks are bound to. But all that add up in the order of ranks give the same bits.
std::vector<Plan> Planner::plans_for(const Call& call, uint64_t bytes) const {
  const Order order = order_of(call);
  std::vector<Plan> plans = algorithms_for(call, order);
  const bool may_force = keeps_rank_order(forced_) || order != Order::kRanks;
  const bool forced = forced_ != Algo::kAuto && has_algorithms(call.collective) && may_force;
  if (forced) plans = {{forced_, 1}, {forced_, 2}};
  if (order != Order::kFixed) return plans;
  const Plan fixed = priced(call, bytes, plans, facts_.unbound())[0].plan;
  if (!keeps_rank_order(own_algo(call.collective, fixed.algo))) return {fixed};
  std::erase_if(plans, [&](Plan plan) { return !keeps_rank_order(own_algo(call.collective, plan.algo)); });
  return plans;
}

std::vector<Candidate> Planner::priced(const Call& call, uint64_t bytes, std::span<const Plan> plans,
                                       const Facts& facts) const {
  std::vector<Candidate> candidates;
  candidates.reserve(plans.size());
  for (const Plan plan : plans)
    candidates.push_back({plan, price_ns(load_of(call.collective, plan, bytes, facts), facts, prices_.prices)});
  sort_stably(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.predicted_ns < b.predicted_ns; });
  return candidates;
}

std::vector<Candidate> Planner::candidates(const Call& call, uint64_t bytes) const {
  return priced(call, bytes, plans_for(call, bytes), facts_);
}

Plan Planner::choose(const Call& call, uint64_t bytes) const {
  return candidates(call, bytes)[0].plan;
}

}  // namespace tutti
