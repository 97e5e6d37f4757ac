#include "plan/planner.h"

#include <algorithm>
#include <set>

namespace tutti {
namespace {

// Messages that a rank sends ahead in a logarithmic exchange: the fewest slots that a link may have.
constexpr uint32_t kWindow = 2;
constexpr uint32_t kChainLanes = 1;
constexpr uint32_t kChainChunks = 1;
// So that ranks copy out of slots while the root still copies into others.
constexpr uint32_t kPipelinedChunks = 4;

}  // namespace

Result<Algo> parse_algo(const std::string& name) {
  if (name.empty()) return Algo::kAuto;
  std::string names;
  for (const Algo algo : kAlgos) {
    if (name == algo_name(algo)) return algo;
    names += std::string(names.empty() ? "" : ", ") + algo_name(algo);
  }
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

namespace {

// Chunks are as small as a round allows: a lane's hosts times ranks of one.
Schedule all_reduce_between_hosts(const Layout& layout, int rank, uint32_t lanes) {
  size_t largest = 0;
  for (const auto& ranks : layout.hosts) largest = std::max(largest, ranks.size());
  const auto chunks = static_cast<uint32_t>(largest * layout.hosts.size());
  return hierarchical_all_reduce(layout.hosts, rank, chunks * lanes, lanes);
}

Schedule all_reduce(const Layout& layout, int rank, Plan plan) {
  const std::vector<int>& order = layout.order;
  const int n_ranks = static_cast<int>(order.size());
  const auto n = static_cast<uint32_t>(n_ranks);
  switch (plan.algo) {
    case Algo::kTree: return tree_all_reduce(order, rank, 2 * plan.lanes);
    case Algo::kDirect: return two_shot_all_reduce(n_ranks, rank, n * plan.lanes, plan.lanes);
    case Algo::kOneShot: return one_shot_all_reduce(n_ranks, rank, 1);
    case Algo::kStar: return two_shot_all_reduce(n_ranks, rank, 1, 1);  // the only chunk is the first rank's
    case Algo::kHalving: return halving_all_reduce(order, rank, n, kWindow);
    case Algo::kDoubling: return doubling_all_reduce(order, rank, 1);
    case Algo::kHierarchical: return all_reduce_between_hosts(layout, rank, 2 * plan.lanes);
    default: return ring_all_reduce(order, rank, n * plan.lanes, plan.lanes);
  }
}

Schedule broadcast(std::span<const int> order, int rank, Plan plan, int root) {
  switch (plan.algo) {
    case Algo::kRing: return ring_broadcast(order, rank, root, kChainChunks, kChainLanes);
    case Algo::kDirect:
      return direct_broadcast(static_cast<int>(order.size()), rank, root, plan.lanes > 1 ? kPipelinedChunks : 1);
    default: return tree_broadcast(order, rank, root, 2 * plan.lanes);
  }
}

Schedule reduce(std::span<const int> order, int rank, Plan plan, int root) {
  switch (plan.algo) {
    case Algo::kRing: return ring_reduce(order, rank, root, kChainChunks, kChainLanes);
    case Algo::kDirect: {
      const auto n = static_cast<int>(order.size());
      return plan.lanes > 1 ? two_shot_reduce(n, rank, root, static_cast<uint32_t>(n))
                            : direct_reduce(n, rank, root, 1);
    }
    default: return tree_reduce(order, rank, root, 2 * plan.lanes);
  }
}

Schedule all_gather(std::span<const int> order, int rank, Plan plan) {
  switch (plan.algo) {
    case Algo::kRing: return ring_all_gather(order, rank, plan.lanes, plan.lanes);
    case Algo::kDirect: return direct_all_gather(static_cast<int>(order.size()), rank, 1);
    default: return bruck_all_gather(order, rank, 1, kWindow);
  }
}

Schedule reduce_scatter(std::span<const int> order, int rank, Plan plan) {
  switch (plan.algo) {
    case Algo::kRing: return ring_reduce_scatter(order, rank, plan.lanes, plan.lanes);
    case Algo::kDirect: return direct_reduce_scatter(static_cast<int>(order.size()), rank, 1);
    default: return bruck_reduce_scatter(order, rank, 1, kWindow);
  }
}

}  // namespace

Schedule Planner::schedule(Collective collective, Plan plan, int root) const {
  plan.algo = own_algo(collective, plan.algo);
  switch (collective) {
    case Collective::kBroadcast: return broadcast(layout_.order, rank_, plan, root);
    case Collective::kReduce: return reduce(sum_layout_.order, rank_, plan, root);
    case Collective::kAllGather: return all_gather(layout_.order, rank_, plan);
    case Collective::kReduceScatter: return reduce_scatter(sum_layout_.order, rank_, plan);
    case Collective::kAllToAll: return all_to_all(n_ranks_, rank_, 1);
    case Collective::kGather: return gather(n_ranks_, rank_, root, 1);
    case Collective::kScatter: return scatter(n_ranks_, rank_, root, 1);
    case Collective::kBarrier: return barrier(n_ranks_, rank_);
    default: return all_reduce(sum_layout_, rank_, plan);
  }
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
