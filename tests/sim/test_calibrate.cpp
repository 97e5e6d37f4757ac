// Calibration finds the costs with which the operations were simulated.
#include "catch.h"
#include "contains.h"
#include "networks.h"
#include "tools/sim/calibrate.h"

namespace tutti::sim::testing {
namespace {

using tutti_test::contains;

Cluster host(bool shares_memory) {
  const Conduit way{1e15, 150, 45, 0.03};
  return {.racks = 1,
          .ranks_per_host = 64,
          .local = way,
          .nic = way,
          .cpus = {.per_host = 2, .summed_byte_ns = 0.007, .operation_ns = 420, .switch_ns = 1100},
          .links = {.shares_memory = shares_memory}};
}

std::vector<MeasuredOperation> operations_on(const Cluster& cluster, uint64_t least, uint64_t factor) {
  std::vector<MeasuredOperation> operations;
  for (const int n : {2, 4})
    for (uint64_t bytes = least; bytes <= 4 << 20; bytes *= factor)
      for (const Algo algo : {Algo::kRing, Algo::kTree, algo_named("doubling")}) {
        const SimulatedOperation of{.bytes = bytes};
        operations.push_back({of, algo, n, run(network_of(cluster, n), of, algo).value().ns});
      }
  return operations;
}

void find_again(const Cluster& real, const Cluster& start) {
  const auto found = calibrate(operations_on(real, 8, 16), start);
  REQUIRE(found);
  CHECK(found.value().median_error < 0.05);
  for (const MeasuredOperation& other : operations_on(real, 96, 32)) {
    const double ns = run(network_of(found.value().cluster, other.n_ranks), other.of, other.algo).value().ns;
    INFO(other.n_ranks << " ranks, " << other.of.bytes << " bytes by " << algo_name(other.algo));
    CHECK(ns == about(other.ns, 0.15));
  }
}

TEST_CASE("a host's costs are found again from what its operations took") {
  const bool shares_memory = GENERATE(true, false);
  const Cluster real = host(shares_memory);
  Cluster start = real;
  start.local = {1e15, 1000, 1000, 0.1};
  start.cpus.summed_byte_ns = 0.1, start.cpus.operation_ns = 50, start.cpus.switch_ns = 5000;
  find_again(real, start);
}

TEST_CASE("a network's speed is found again") {
  Cluster real = host(true);
  real.hosts_per_rack = 64, real.ranks_per_host = 1, real.cpus.per_host = 1;
  real.nic = {1.2e8, 24'000, 3500, 0.2};
  Cluster start = real;
  start.nic = {1e9, 5000, 1000, 0.05};
  find_again(real, start);
}

TEST_CASE("nothing is learned from nothing") {
  const auto nothing = calibrate({}, host(true));
  REQUIRE(!nothing);
  CHECK(contains(nothing.error().message, "no operations to learn from"));
}

}  // namespace
}  // namespace tutti::sim::testing
