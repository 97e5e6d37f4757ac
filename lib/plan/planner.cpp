#include "plan/planner.h"

#include <numeric>
#include <set>

namespace tutti {
namespace {

// Two rings side by side, a round of one overlapping a round of the other: measured 1.2x over one ring at 64 MiB.
constexpr uint32_t kRingLanes = 2;
// Chunks of one round of a tree or chain; more rounds follow without a gap, so two per tree are enough.
constexpr uint32_t kTreeChunks = 4;
constexpr uint32_t kChainLanes = 1;
constexpr uint32_t kChainChunks = 1;
// Messages that a rank sends ahead in a logarithmic exchange: the fewest slots that a link may have.
constexpr uint32_t kWindow = 2;
// Two groups of chunks side by side, one waiting for its peers while the other works.
constexpr uint32_t kDirectLanes = 2;
// Below, the logarithmic depth of the tree wins over the ring's bandwidth.
constexpr uint64_t kTreeBelowBytesPerRank = 16 << 10;

}  // namespace

Result<Algo> parse_algo(const std::string& name) {
  for (const Algo algo : {Algo::kRing, Algo::kTree})
    if (name == algo_name(algo)) return algo;
  if (name.empty()) return Algo::kAuto;
  return Error{Code::kInvalidUsage,
               "there is no algorithm '" + name + "' (TUTTI_ALGO or the configuration's algo); there are: ring, tree"};
}

Planner::Planner(int rank, int n_ranks, Algo forced, bool deterministic)
    : rank_(rank),
      n_ranks_(n_ranks),
      forced_(forced),
      deterministic_(deterministic),
      order_(static_cast<size_t>(n_ranks)) {
  std::iota(order_.begin(), order_.end(), 0);
}

Algo Planner::choose(Collective collective, uint64_t bytes) const {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kAllGather:
    case Collective::kReduceScatter: break;
    case Collective::kFinalize: return Algo::kTree;
    default: return Algo::kAuto;  // there is one way only
  }
  if (deterministic_ && traits(collective).reduces) return Algo::kDirect;
  if (forced_ != Algo::kAuto) return forced_;
  if (n_ranks_ <= 2) return Algo::kRing;
  return bytes < kTreeBelowBytesPerRank * static_cast<uint64_t>(n_ranks_) ? Algo::kTree : Algo::kRing;
}

Schedule Planner::schedule(Collective collective, Algo algo, int root) const {
  const auto n = static_cast<uint32_t>(n_ranks_);
  const bool ring = algo == Algo::kRing;
  if (algo == Algo::kDirect) {
    if (collective == Collective::kReduce) return direct_reduce(n_ranks_, rank_, root, 1);
    if (collective == Collective::kReduceScatter) return direct_reduce_scatter(n_ranks_, rank_, 1);
    return two_shot_all_reduce(n_ranks_, rank_, n * kDirectLanes, kDirectLanes);
  }
  switch (collective) {
    case Collective::kBroadcast:
      return ring ? ring_broadcast(order_, rank_, root, kChainChunks, kChainLanes)
                  : tree_broadcast(order_, rank_, root, kTreeChunks);
    case Collective::kReduce:
      return ring ? ring_reduce(order_, rank_, root, kChainChunks, kChainLanes)
                  : tree_reduce(order_, rank_, root, kTreeChunks);
    case Collective::kAllGather:
      return ring ? ring_all_gather(order_, rank_, kRingLanes, kRingLanes)
                  : bruck_all_gather(order_, rank_, 1, kWindow);
    case Collective::kReduceScatter:
      return ring ? ring_reduce_scatter(order_, rank_, kRingLanes, kRingLanes)
                  : bruck_reduce_scatter(order_, rank_, 1, kWindow);
    case Collective::kAllToAll: return all_to_all(n_ranks_, rank_, 1);
    case Collective::kGather: return gather(n_ranks_, rank_, root, 1);
    case Collective::kScatter: return scatter(n_ranks_, rank_, root, 1);
    case Collective::kBarrier: return barrier(n_ranks_, rank_);
    default: break;
  }
  return ring ? ring_all_reduce(order_, rank_, n * kRingLanes, kRingLanes)
              : tree_all_reduce(order_, rank_, kTreeChunks);
}

std::vector<int> Planner::neighbours() const {
  std::set<int> found;
  for (const Algo algo : {Algo::kRing, Algo::kTree})
    for (const Lane& lane : schedule(Collective::kAllReduce, algo, 0).lanes)
      for (const Step& step : lane.steps)
        for (const int peer : {step.recv, step.send})
          if (peer >= 0) found.insert(peer);
  return {found.begin(), found.end()};
}

}  // namespace tutti
