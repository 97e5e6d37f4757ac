#include "plan/planner.h"

#include <set>

namespace tutti {
namespace {

// Two rings side by side, a round of one overlapping a round of the other: measured 1.2x over one ring at 64 MiB.
constexpr uint32_t kRingLanes = 2;
constexpr uint32_t kHierarchicalLanes = 4;
// Chunks of one round of a tree or chain; more rounds follow without a gap, so two per tree are enough.
constexpr uint32_t kTreeChunks = 4;
constexpr uint32_t kChainLanes = 1;
constexpr uint32_t kChainChunks = 1;
// Messages that a rank sends ahead in a logarithmic exchange: the fewest slots that a link may have.
constexpr uint32_t kWindow = 2;
// Two groups of chunks side by side, one waiting for its peers while the other works.
constexpr uint32_t kDirectLanes = 2;
// So many ranks still talk to each other directly; n * n links are too many one day.
constexpr int kFewRanks = 16;
// Below, one hop with all of the data is cheaper than two with parts of it.
constexpr uint64_t kOneShotBelowBytes = 16 << 10;
// Below, the logarithmic depth of the tree wins over the ring's bandwidth.
constexpr uint64_t kTreeBelowBytesPerRank = 16 << 10;

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

Planner::Planner(int rank, Layout layout, Algo forced, bool deterministic)
    : rank_(rank),
      n_ranks_(static_cast<int>(layout.order.size())),
      layout_(std::move(layout)),
      forced_(forced),
      deterministic_(deterministic) {}

bool Planner::sums_in_one_place(const Call& call) const {
  if (!traits(call.collective).reduces) return false;
  if (deterministic_) return true;
  // One addition per sum rounds once, whoever makes it; and the extremes are not rounded.
  if (n_ranks_ <= 2 || call.op == RedOp::kMin || call.op == RedOp::kMax) return false;
  return is_small_float(call.dtype);
}

Algo Planner::choose(const Call& call) const {
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kAllGather:
    case Collective::kReduceScatter: break;
    case Collective::kFinalize: return Algo::kTree;
    default: return Algo::kAuto;  // there is one way only
  }
  const uint64_t bytes = call.count * dtype_bytes(call.dtype);
  const bool direct = sums_in_one_place(call);
  if (forced_ != Algo::kAuto && (!direct || forced_ == Algo::kOneShot || forced_ == Algo::kDirect)) return forced_;
  // Between hosts that have several ranks each, everybody's messages to everybody would queue up for one network.
  const size_t n_hosts = layout_.hosts.size(), n = layout_.order.size();
  const bool share_network = n_hosts > 1 && n_hosts < n;
  const bool few = n_ranks_ <= kFewRanks;
  const uint64_t one_shot_below = share_network ? kOneShotBelowBytes / n : kOneShotBelowBytes;
  if (call.collective == Collective::kAllReduce && bytes < one_shot_below && (direct || few)) return Algo::kOneShot;
  if (direct || (few && !share_network)) return Algo::kDirect;
  if (bytes < kTreeBelowBytesPerRank * n) return Algo::kTree;
  return share_network ? Algo::kHierarchical : Algo::kRing;
}

namespace {

// Chunks are as small as a round allows: a lane's hosts times ranks of one.
Schedule all_reduce_between_hosts(const Layout& layout, int rank) {
  size_t largest = 0;
  for (const auto& ranks : layout.hosts) largest = std::max(largest, ranks.size());
  const auto chunks = static_cast<uint32_t>(largest * layout.hosts.size());
  return hierarchical_all_reduce(layout.hosts, rank, chunks * kHierarchicalLanes, kHierarchicalLanes);
}

Schedule all_reduce(const Layout& layout, int rank, Algo algo) {
  const std::vector<int>& order = layout.order;
  const int n_ranks = static_cast<int>(order.size());
  const auto n = static_cast<uint32_t>(n_ranks);
  switch (algo) {
    case Algo::kTree: return tree_all_reduce(order, rank, kTreeChunks);
    case Algo::kDirect: return two_shot_all_reduce(n_ranks, rank, n * kDirectLanes, kDirectLanes);
    case Algo::kOneShot: return one_shot_all_reduce(n_ranks, rank, 1);
    case Algo::kHalving: return halving_all_reduce(order, rank, n, kWindow);
    case Algo::kHierarchical: return all_reduce_between_hosts(layout, rank);
    default: return ring_all_reduce(order, rank, n * kRingLanes, kRingLanes);
  }
}

Schedule broadcast(std::span<const int> order, int rank, Algo algo, int root) {
  switch (algo) {
    case Algo::kRing:
    case Algo::kHierarchical: return ring_broadcast(order, rank, root, kChainChunks, kChainLanes);
    case Algo::kDirect:
    case Algo::kOneShot: return direct_broadcast(static_cast<int>(order.size()), rank, root, 1);
    default: return tree_broadcast(order, rank, root, kTreeChunks);
  }
}

Schedule reduce(std::span<const int> order, int rank, Algo algo, int root) {
  switch (algo) {
    case Algo::kRing:
    case Algo::kHierarchical: return ring_reduce(order, rank, root, kChainChunks, kChainLanes);
    case Algo::kDirect:
    case Algo::kOneShot: return direct_reduce(static_cast<int>(order.size()), rank, root, 1);
    default: return tree_reduce(order, rank, root, kTreeChunks);
  }
}

Schedule all_gather(std::span<const int> order, int rank, Algo algo) {
  switch (algo) {
    case Algo::kRing:
    case Algo::kHierarchical: return ring_all_gather(order, rank, kRingLanes, kRingLanes);
    case Algo::kDirect:
    case Algo::kOneShot: return direct_all_gather(static_cast<int>(order.size()), rank, 1);
    default: return bruck_all_gather(order, rank, 1, kWindow);
  }
}

Schedule reduce_scatter(std::span<const int> order, int rank, Algo algo) {
  switch (algo) {
    case Algo::kRing:
    case Algo::kHierarchical: return ring_reduce_scatter(order, rank, kRingLanes, kRingLanes);
    case Algo::kDirect:
    case Algo::kOneShot: return direct_reduce_scatter(static_cast<int>(order.size()), rank, 1);
    default: return bruck_reduce_scatter(order, rank, 1, kWindow);
  }
}

}  // namespace

Schedule Planner::schedule(Collective collective, Algo algo, int root) const {
  switch (collective) {
    case Collective::kBroadcast: return broadcast(layout_.order, rank_, algo, root);
    case Collective::kReduce: return reduce(layout_.order, rank_, algo, root);
    case Collective::kAllGather: return all_gather(layout_.order, rank_, algo);
    case Collective::kReduceScatter: return reduce_scatter(layout_.order, rank_, algo);
    case Collective::kAllToAll: return all_to_all(n_ranks_, rank_, 1);
    case Collective::kGather: return gather(n_ranks_, rank_, root, 1);
    case Collective::kScatter: return scatter(n_ranks_, rank_, root, 1);
    case Collective::kBarrier: return barrier(n_ranks_, rank_);
    default: return all_reduce(layout_, rank_, algo);
  }
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
