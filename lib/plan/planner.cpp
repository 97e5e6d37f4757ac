#include "plan/planner.h"

#include <algorithm>
#include <set>

namespace tutti {
Result<Algo> parse_algo(const std::string& name) {
  if (name.empty()) return Algo::kAuto;
  if (const Algo algo = algo_named(name); algo != Algo::kAuto) return algo;
  std::string names;
  for (const Algorithm* algorithm : algorithms()) names += std::string(names.empty() ? "" : ", ") + algorithm->name;
  return Error{Code::kInvalidUsage,
               "there is no algorithm '" + name + "' (TUTTI_ALGO or the configuration's algo); there are: " + names};
}

// Where ranks stand on their hosts may depend on the CPUs they are bound to, which must not change a sum's bits.
Layout Planner::without_places(Layout layout) {
  const bool by_rank = std::is_sorted(layout.order.begin(), layout.order.end());  // TUTTI_ORDER
  if (!by_rank) layout.order.clear();
  for (std::vector<int>& ranks : layout.hosts) {
    std::sort(ranks.begin(), ranks.end());
    if (!by_rank) layout.order.insert(layout.order.end(), ranks.begin(), ranks.end());
  }
  return layout;
}

Planner::Planner(int rank, Layout layout, Algo forced, bool deterministic)
    : rank_(rank),
      n_ranks_(static_cast<int>(layout.order.size())),
      layout_(std::move(layout)),
      sum_layout_(without_places(layout_)),
      forced_(forced),
      deterministic_(deterministic) {}

void Planner::set_facts(const Facts& facts, PriceList prices) {
  facts_ = facts;
  prices_ = std::move(prices);
}

Schedule Planner::schedule(Collective collective, Plan plan, int root) const {
  switch (collective) {
    case Collective::kAllToAll: return all_to_all(n_ranks_, rank_, 1);
    case Collective::kGather: return gather(n_ranks_, rank_, root, 1);
    case Collective::kScatter: return scatter(n_ranks_, rank_, root, 1);
    case Collective::kBarrier: return barrier(n_ranks_, rank_);
    case Collective::kFinalize: collective = Collective::kAllReduce; break;
    default: break;
  }
  const Layout& layout = traits(collective).reduces ? sum_layout_ : layout_;
  const Algorithm& algorithm = *algorithm_of(own_algo(collective, plan.algo));
  return algorithm.method(collective).build({layout.order, layout.hosts, rank_, root, plan.lanes});
}

std::vector<int> Planner::neighbours() const {
  std::set<int> found;
  for (const Algo algo : {Algo::kRing, Algo::kTree})
    for (const Lane& lane : schedule(Collective::kAllReduce, {algo, kMostLanes}, 0).lanes)
      for (const Step& step : lane.steps)
        for (const int peer : {step.recv, step.send})
          if (peer >= 0) found.insert(peer);
  return {found.begin(), found.end()};
}

}  // namespace tutti
