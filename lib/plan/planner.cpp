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

Planner::Planner(int rank, int n_ranks, Algo forced)
    : rank_(rank), n_ranks_(n_ranks), forced_(forced), order_(static_cast<size_t>(n_ranks)) {
  std::iota(order_.begin(), order_.end(), 0);
}

Algo Planner::choose(Collective collective, uint64_t bytes) const {
  if (collective == Collective::kFinalize) return Algo::kTree;
  if (forced_ != Algo::kAuto) return forced_;
  if (n_ranks_ <= 2) return Algo::kRing;
  return bytes < kTreeBelowBytesPerRank * static_cast<uint64_t>(n_ranks_) ? Algo::kTree : Algo::kRing;
}

Schedule Planner::schedule(Collective collective, Algo algo, int root) const {
  const auto n = static_cast<uint32_t>(n_ranks_);
  if (collective == Collective::kBroadcast)
    return algo == Algo::kRing ? ring_broadcast(order_, rank_, root, kChainChunks, kChainLanes)
                               : tree_broadcast(order_, rank_, root, kTreeChunks);
  return algo == Algo::kRing ? ring_all_reduce(order_, rank_, n * kRingLanes, kRingLanes)
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
