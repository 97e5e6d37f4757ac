// Messages over TCP, operations in a row, and traffic shaping, against times computed by hand.
#include <algorithm>

#include "catch.h"
#include "networks.h"
#include "tools/sim/traffic.h"

namespace tutti::sim::testing {
namespace {

Outcome outcome_of(const Cluster& cluster, int n_ranks, const SimulatedOperation& of, Algo algo) {
  const auto outcome = run(network_of(cluster, n_ranks), of, algo);
  REQUIRE(outcome);
  return outcome.value();
}

Cluster tcp_cluster() {
  Cluster cluster = plain_cluster();
  cluster.links.rdma = false;
  return cluster;
}

const Algo kLinear = algo_named("linear");

TEST_CASE("a shaper lets a burst pass after a pause, and then its speed") {
  Shaper shaper(2, 100);  // bytes per ns, bytes
  CHECK(shaper.take(40, 0) == 0);
  CHECK(shaper.free_ns(0) == 20);
  // 10 ns later 20 bytes of the burst are available again, after a long time all of it.
  CHECK(shaper.take(60, 30) == about(20));
  CHECK(shaper.free_ns(30) == about(30 + 40 / 2.));
  CHECK(shaper.take(160, 1000) == about(100));
  CHECK(shaper.free_ns(1000) == about(1000 + 60 / 2.));
}

TEST_CASE("over TCP, a host's messages leave in turn") {
  constexpr uint64_t kInput = 32 << 10;
  constexpr double kEachNs = kInput / kBytesPerNs;
  // When the sum arrives at ranks 1, 2 and 3, measured from its start at rank 0.
  const auto arrivals = [&](const Cluster& cluster) {
    std::vector<double> ends;
    for (const Span& span : outcome_of(cluster, 4, {.bytes = kInput, .traces = true}, kLinear).spans)
      if (span.kind == Span::kMessage && span.rank == 0) ends.push_back(span.end_ns - kLatencyNs - 3 * kEachNs);
    std::sort(ends.begin(), ends.end());
    return ends;
  };
  for (const bool in_turn : {true, false}) {
    const std::vector<double> ends = arrivals(in_turn ? tcp_cluster() : plain_cluster());
    REQUIRE(ends.size() == 3);
    for (size_t i = 0; i < 3; i++) CHECK(ends[i] == about((in_turn ? static_cast<double>(i) + 1 : 3) * kEachNs));
  }
}

TEST_CASE("operations in a row: what each after the first one adds") {
  // A ring's ranks wait for all others. Linear's do not: rank 1 sends its next input while rank 0 still sends sums.
  constexpr uint64_t kInput = 32 << 10;
  SimulatedOperation once{.bytes = kInput}, row{.bytes = kInput, .row = 5};
  const Outcome ring = outcome_of(tcp_cluster(), 4, once, Algo::kRing);
  const Outcome rings = outcome_of(tcp_cluster(), 4, row, Algo::kRing);
  CHECK(rings.ns == about(ring.ns));
  CHECK(rings.messages == ring.messages);
  CHECK(rings.bytes == ring.bytes);
  CHECK(rings.wire_bytes == ring.wire_bytes);
  const double each_ns = kInput / kBytesPerNs;
  CHECK(outcome_of(tcp_cluster(), 4, once, kLinear).ns == about(2 * (3 * each_ns + kLatencyNs)));
  CHECK(outcome_of(tcp_cluster(), 4, row, kLinear).ns < 4.5 * each_ns + 2 * kLatencyNs);
  // In two lanes, each of which does all operations.
  Cluster lanes = tcp_cluster();
  lanes.links.slots = lanes.links.slot_bytes = 0;
  once.bytes = row.bytes = 2 << 20;
  const Outcome in_lanes = outcome_of(lanes, 2, row, Algo::kRing);
  CHECK(in_lanes.messages == outcome_of(lanes, 2, once, Algo::kRing).messages);
  CHECK(in_lanes.ns > 0.99 * (2 << 20) / kBytesPerNs);
}

TEST_CASE("what goes in and out by turns finds a burst each time") {
  constexpr uint64_t kInput = 32 << 10;
  Cluster cluster = tcp_cluster();
  const SimulatedOperation row{.bytes = kInput, .row = 4};
  const double each_ns = kInput / kBytesPerNs;
  CHECK(outcome_of(cluster, 2, row, kLinear).ns == about(2 * (each_ns + kLatencyNs)));
  // Each direction is idle while the other one is used, for as long as half a message takes.
  cluster.nic.burst_bytes = kInput / 2;
  CHECK(outcome_of(cluster, 2, row, kLinear).ns == about(2 * (each_ns / 2 + kLatencyNs), 0.1));
  cluster.nic.burst_bytes = kInput;
  const double ns = outcome_of(cluster, 2, row, kLinear).ns;
  CHECK(ns == about(std::max(each_ns, 2 * kLatencyNs), 0.1));
  CHECK(outcome_of(cluster, 2, row, kLinear).wire_bytes == outcome_of(tcp_cluster(), 2, row, kLinear).wire_bytes);
}

TEST_CASE("over TCP on one host a receiver begins while the sender still sends") {
  Cluster cluster = tcp_cluster();
  cluster.ranks_per_host = 2;
  cluster.local = {1e15, 0, 0, 0.1};
  cluster.links.slot_bytes = 8 * kTcpMessageBytes;
  const auto ns_of = [&](uint64_t bytes, bool shares_memory) {
    cluster.links.shares_memory = shares_memory;
    return outcome_of(cluster, 2, {.bytes = bytes}, kLinear).ns;
  };
  const double segment_ns = kTcpMessageBytes * 0.1;
  // There and back: 6 segments go in, and all but the last one go out at the same time.
  CHECK(ns_of(6 * kTcpMessageBytes, false) == about(2 * 7 * segment_ns, 1e-5));
  CHECK(ns_of(6 * kTcpMessageBytes, true) == about(2 * 12 * segment_ns, 1e-5));
  CHECK(ns_of(kTcpMessageBytes, false) == about(2 * 2 * segment_ns, 1e-5));
  // But not before the whole message has left: rank 0 takes ten times as long to receive and to send.
  cluster.exceptions = {{.rank = 0, .slowdown = 10}};
  cluster.links.shares_memory = false;
  const Outcome outcome = outcome_of(cluster, 2, {.bytes = 6 * kTcpMessageBytes}, kLinear);
  CHECK(outcome.ends_ns[0] == about((1 + 60 + 60) * segment_ns, 1e-5));
  CHECK(outcome.ends_ns[1] == about(outcome.ends_ns[0]));
}

TEST_CASE("a message that has waited for long costs its receiver more") {
  Cluster cluster = plain_cluster();
  cluster.ranks_per_host = 4;
  cluster.local = {1e15, 0, 100, 0};
  cluster.cpus.per_host = 1;
  const auto ns_with = [&](double cache_bytes, double evicted_byte_ns) {
    cluster.cpus.cache_bytes = cache_bytes, cluster.cpus.evicted_byte_ns = evicted_byte_ns;
    return outcome_of(cluster, 4, {.bytes = 4 << 10}, algo_named("oneshot")).ns;
  };
  const double plain_ns = ns_with(0, 0);
  // Each rank sends three messages before it receives any.
  CHECK(ns_with(1 << 20, 1) == plain_ns);
  CHECK(ns_with(0, 1) == plain_ns);
  CHECK(ns_with(1 << 10, 1) == about(plain_ns + 12 * (4 << 10), 0.2));
  // Data from other hosts have not been in these caches.
  cluster.ranks_per_host = 1, cluster.nic.message_ns = 100;
  const double far_ns = ns_with(0, 0);
  CHECK(ns_with(1 << 10, 1) == far_ns);
}

TEST_CASE("hosts that share CPUs are not alike") {
  Cluster cluster = tcp_cluster();
  cluster.nic = {1e15, 0, 1000, 0};
  cluster.cpus = {.per_host = 2, .are_shared = true};
  // 8 ranks send and receive 14 times each.
  const double ns = outcome_of(cluster, 8, {.bytes = 8 << 10}, Algo::kRing).ns;
  CHECK(ns == about(8 * 14 * 2 * 1000 / 2, 0.05));
  // If nothing says how many there are, all can work at once.
  cluster.cpus.per_host = 0;
  CHECK(outcome_of(cluster, 8, {.bytes = 8 << 10}, Algo::kRing).ns == about(14 * 2 * 1000, 0.05));
}

}  // namespace
}  // namespace tutti::sim::testing
