#include "tools/sim/compare.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tutti::sim {
namespace {

Medium medium_of(const Conduit& way, const Cluster& cluster) {
  const double oversubscription =
      cluster.cpus.per_host > 0 ? static_cast<double>(cluster.ranks_per_host) / cluster.cpus.per_host : 1;
  const double turn =
      cluster.cpus.switch_ns > 0 ? cluster.cpus.switch_ns : way.latency_ns / std::max(1.0, oversubscription);
  return {way.latency_ns, turn, way.message_ns, way.byte_ns};
}

// How schedules and network repeat those of the first ranks; nothing if they do not.
std::optional<Symmetry> symmetry_of(const Network& network, const std::function<Schedule(int)>& schedule) {
  const int n = network.n_ranks();
  Schedule first = schedule(0);
  Alike alike = first.alike;
  if (alike.period == 0) return {};
  const int period = std::lcm(alike.period, network.period());
  alike.walk.stride *= static_cast<uint32_t>(period / std::exchange(alike.period, period));
  if (period >= n || !Symmetry(alike, n).divides_evenly(first.n_chunks)) return {};
  std::vector<Schedule> all;
  for (int rank = 0; rank < n; rank++) all.push_back(schedule(rank));
  if (!are_alike(all)) return {};
  return Symmetry(alike, n);
}

}  // namespace

// The planner knows no ports within a host, so their bytes count as work, half of it at either end. Nor caches.
Prices prices_of(const Cluster& cluster) {
  Prices prices{.shm = medium_of(cluster.local, cluster), .network = medium_of(cluster.nic, cluster)};
  prices.shm.byte += 0.5e9 / cluster.local.bytes_per_second;
  prices.loopback = prices.shm;
  prices.rdma = prices.network;
  prices.summed_byte = cluster.cpus.summed_byte_ns;
  return prices;
}

Planner planner_of(const Network& network) {
  return {0, network.layout(), Algo::kAuto, false, facts_of(network), {prices_of(network.cluster()), "", {}}};
}

uint64_t block_bytes(const SimulatedOperation& operation, int n_ranks) {
  return traits(operation.collective).in_blocks() ? operation.bytes / static_cast<uint64_t>(n_ranks) : operation.bytes;
}

Call call_of(const SimulatedOperation& operation, int n_ranks, DataType dtype) {
  return {.count = block_bytes(operation, n_ranks) / dtype_bytes(dtype),
          .collective = operation.collective,
          .dtype = dtype,
          .root = operation.root};
}

std::vector<Algo> algorithms_of(const Planner& planner, const SimulatedOperation& operation, Algo algo) {
  if (algo != Algo::kAuto) return {own_algo(operation.collective, algo)};
  const int n = planner.facts().n_ranks;
  std::vector<Algo> all;
  const Call call = call_of(operation, n, DataType::kInt32);
  for (const Candidate& candidate : planner.candidates(call, block_bytes(operation, n))) all.push_back(candidate.algo);
  return all;
}

Result<Outcome> run(const Network& network, const SimulatedOperation& operation, Algo algo) {
  const Planner planner = planner_of(network);
  const uint64_t bytes = block_bytes(operation, network.n_ranks());
  const uint32_t lanes = lanes_of(operation.collective, algo, bytes, planner.facts());
  const auto schedule = [&](int rank) {
    return planner.schedule_of(rank, operation.collective, algo, operation.root, lanes);
  };
  const auto neighbours = [&](int rank) { return Planner(rank, planner.layout(), Algo::kAuto, false).neighbours(); };
  const Job job{.schedule = schedule,
                .block_elems = bytes / sizeof(float),
                .elem_bytes = sizeof(float),
                .rank_blocks = rank_blocks(operation.collective, network.n_ranks()),
                .traces = operation.traces,
                .row = operation.row,
                .neighbours = neighbours,
                .most_steps = operation.most_steps,
                .alike = operation.traces ? std::nullopt : symmetry_of(network, schedule)};
  return run(network, job);
}

double bus_factor(Collective collective, int n_ranks) {
  const double n = n_ranks;
  if (collective == Collective::kAllReduce) return 2 * (n - 1) / n;
  return traits(collective).in_blocks() ? (n - 1) / n : 1;
}

}  // namespace tutti::sim
