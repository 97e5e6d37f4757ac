#include "plan/planner.h"

#include <algorithm>
#include <set>

namespace tutti {
Result<Algo> parse_algo(const std::string& name) {
  if (name.empty()) return Algo::kAuto;
  // Former names.
  if (name == "star") return algo_named("linear");
  if (name == "halving" || name == "rabenseifner") return algo_named("circulant");
  if (const Algo algo = algo_named(name); algo != Algo::kAuto) return algo;
  std::string names;
  for (const Algorithm* algorithm : algorithms()) names += std::string(names.empty() ? "" : ", ") + algorithm->name;
  return Error{Code::kInvalidUsage, "there is no algorithm '" + name + "'; choose one of: " + names};
}

void add_network(const Layout& layout, Facts* facts) {
  const auto is_smaller = [](const std::vector<int>& a, const std::vector<int>& b) { return a.size() < b.size(); };
  const auto [least, most] = std::minmax_element(layout.hosts.begin(), layout.hosts.end(), is_smaller);
  const std::vector<std::vector<int>> racks = by_rack(layout);
  facts->hosts = static_cast<int>(layout.hosts.size());
  facts->smallest_host = static_cast<int>(least->size());
  facts->largest_host = static_cast<int>(most->size());
  facts->racks.n = static_cast<int>(racks.size());
  facts->racks.largest = static_cast<int>(std::max_element(racks.begin(), racks.end(), is_smaller)->size());
  std::vector<uint64_t> speeds = layout.bytes_per_second;
  std::sort(speeds.begin(), speeds.end());  // slow hosts first
  facts->wire_bytes_per_second = std::max<uint64_t>(1, speeds[0]);
  facts->fast_bytes_per_second = layout.slow_hosts.empty() ? 0 : speeds[layout.slow_hosts.size()];
}

// The order of ranks on a host may depend on the CPUs they are bound to, which must not change a sum's bits.
Layout Planner::without_places(Layout layout) {
  const bool by_rank = std::is_sorted(layout.order.begin(), layout.order.end());  // TUTTI_ORDER
  if (!by_rank) layout.order.clear();
  for (std::vector<int>& ranks : layout.hosts) {
    std::sort(ranks.begin(), ranks.end());
    if (!by_rank) layout.order.insert(layout.order.end(), ranks.begin(), ranks.end());
  }
  return layout;
}

Planner::Planner(int rank, Layout layout, Algo forced, bool deterministic, const Facts& facts, PriceList prices)
    : rank_(rank),
      n_ranks_(static_cast<int>(layout.order.size())),
      layout_(std::move(layout)),
      sum_layout_(without_places(layout_)),
      forced_(forced),
      deterministic_(deterministic),
      facts_(facts),
      prices_(std::move(prices)) {}

Schedule Planner::schedule_of(int rank, Collective collective, Algo algo, int root, uint32_t n_lanes) const {
  switch (collective) {
    case Collective::kAllToAll: return all_to_all(n_ranks_, rank);
    case Collective::kGather: return gather(n_ranks_, rank, root);
    case Collective::kScatter: return scatter(n_ranks_, rank, root);
    case Collective::kBarrier: return barrier(n_ranks_, rank);
    case Collective::kFinalize: collective = Collective::kAllReduce; break;
    default: break;
  }
  const Layout& layout = traits(collective).reduces ? sum_layout_ : layout_;
  const Algorithm& algorithm = *algorithm_of(own_algo(collective, algo));
  std::vector<std::vector<int>> slow;
  for (const int host : layout.slow_hosts) slow.push_back(layout.hosts[static_cast<size_t>(host)]);
  // With 65,536 ranks the simulator asks for each one's schedule, and dividing into racks takes most of the time.
  const auto racks = algorithm.is_for_racks ? by_rack(layout) : std::vector<std::vector<int>>();
  return algorithm.method(collective).build({layout.order, layout.hosts, racks, slow, rank, root, n_lanes});
}

std::vector<int> Planner::neighbours() const {
  std::set<int> found;
  for (const Algo algo : {Algo::kRing, Algo::kTree})
    for (const Lane& lane : schedule(Collective::kAllReduce, algo, 0).lanes)
      for (const Step& step : lane.steps.patterns())
        for (const int peer : {step.recv, step.send})
          if (peer >= 0) found.insert(peer);
  return {found.begin(), found.end()};
}

}  // namespace tutti
