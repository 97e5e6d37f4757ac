// Simulated times against times computed by hand.
#include <algorithm>
#include <numeric>

#include "catch.h"
#include "contains.h"
#include "networks.h"

namespace tutti::sim::testing {
namespace {

using tutti_test::contains;

double ns_of(const Network& network, SimulatedOperation operation, Algo algo) {
  const auto outcome = run(network, operation, algo);
  REQUIRE(outcome);
  return outcome.value().ns;
}

std::vector<int> natural(int n) {
  std::vector<int> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Each chunk goes along `order`, starting at the root, to all others.
Schedule chain_from(int root, int rank, const std::vector<int>& order, uint32_t n_chunks) {
  const size_t n = order.size(), at = static_cast<size_t>(std::ranges::find(order, rank) - order.begin());
  const int next = order[(at + 1) % n], before = order[(at + n - 1) % n];
  Steps steps;
  for (uint32_t chunk = 0; chunk < n_chunks; chunk++) {
    Step step{.chunk = chunk, .store = {Buffer::kOutput, chunk}};
    if (rank == root) step.local = {Buffer::kInput, chunk};
    if (rank != root) step.recv = before;
    if (next != root) step.send = next;
    steps.push_back(step);
  }
  Schedule schedule{.rank = rank, .n_ranks = static_cast<int>(n), .n_chunks = n_chunks};
  schedule.add_lane(0, std::move(steps));
  return schedule;
}

TEST_CASE("a ring takes 2 (n - 1) hops of an n-th of the bytes") {
  for (const int n : {2, 3, 8, 33}) {
    const uint64_t part = 1 << 18;
    const double hop = kLatencyNs + static_cast<double>(part) / kBytesPerNs;
    const SimulatedOperation of{.bytes = part * static_cast<uint64_t>(n)};
    CHECK(ns_of(network_of(plain_cluster(), n), of, Algo::kRing) == about(2 * (n - 1) * hop));
    // All-gather and reduce-scatter are half of an all-reduce.
    for (const Collective half : {Collective::kAllGather, Collective::kReduceScatter})
      CHECK(ns_of(network_of(plain_cluster(), n), {half, of.bytes}, Algo::kRing) == about((n - 1) * hop));
    // In slots of a quarter of that: four rounds.
    Cluster in_rounds = plain_cluster();
    in_rounds.links.slot_bytes = part / 4;
    const double quarter = kLatencyNs + part / 4 / kBytesPerNs;
    CHECK(ns_of(network_of(in_rounds, n), of, Algo::kRing) == about(4 * 2 * (n - 1) * quarter));
  }
}

TEST_CASE("recursive doubling takes log2 n hops of all bytes") {
  const SimulatedOperation of{.bytes = 1 << 20};
  const double hop = kLatencyNs + static_cast<double>(of.bytes) / kBytesPerNs;
  CHECK(ns_of(network_of(plain_cluster(), 16), of, algo_named("doubling")) == about(4 * hop));
}

// Both trees at once, up and down; sending so little is almost free.
TEST_CASE("trees take twice their height in hops") {
  for (const int height : {1, 2, 3, 5}) {
    const double ns = ns_of(network_of(plain_cluster(), (2 << height) - 1), {.bytes = 8}, Algo::kTree);
    CHECK(ns == about(2 * height * kLatencyNs, 0.001));
  }
}

TEST_CASE("a chain is filled once, then each chunk takes its own time") {
  constexpr int kRanks = 9;
  constexpr uint32_t kChunks = 16;
  const uint64_t chunk = 1 << 20;
  const auto order = natural(kRanks);
  const Job job{.schedule = [&](int rank) { return chain_from(0, rank, order, kChunks); },
                .block_elems = kChunks * chunk / sizeof(float)};
  const auto outcome = run(network_of(plain_cluster(), kRanks), job);
  REQUIRE(outcome);
  const double chunk_ns = static_cast<double>(chunk) / kBytesPerNs;
  CHECK(outcome.value().ns == about((kRanks - 1) * (kLatencyNs + chunk_ns) + (kChunks - 1) * chunk_ns));
}

TEST_CASE("a death is heard of hop by hop; who is done by then has its result") {
  constexpr int kRanks = 9;
  const auto order = natural(kRanks);
  Job job{.schedule = [&](int rank) { return chain_from(0, rank, order, 16); },
          .block_elems = 16 << 18,
          .neighbours =
              [](int rank) {
                std::vector<int> all;
                for (const int peer : {rank - 1, rank + 1})
                  if (peer >= 0 && peer < kRanks) all.push_back(peer);
                return all;
              }};
  const auto alive = run(network_of(plain_cluster(), kRanks), job);
  REQUIRE(alive);
  const auto with_death = [&](double ns) {
    Cluster cluster = plain_cluster();
    cluster.exceptions = {{.rank = 3, .dies_ns = ns}};
    return run(network_of(cluster, kRanks), job);
  };
  const auto early = with_death(5000);
  REQUIRE(early);
  CHECK(early.value().failed == kRanks - 1);
  for (const int rank : {0, 1, 2, 4, 5, 6, 7, 8})
    CHECK(early.value().ends_ns[static_cast<size_t>(rank)] == about(5000 + std::abs(rank - 3) * kLatencyNs));
  CHECK(early.value().ns == about(5000 + 5 * kLatencyNs));
  // The ranks before it are done; those behind it are told before their last chunks come.
  const double end = alive.value().ends_ns[3];
  const auto late = with_death(end + 1);
  REQUIRE(late);
  CHECK(late.value().failed == 5);
  CHECK(late.value().ends_ns[1] == alive.value().ends_ns[1]);
  const auto after_all = with_death(alive.value().ns + 1);
  REQUIRE(after_all);
  CHECK(after_all.value().failed == 0);
  CHECK(after_all.value().ns == alive.value().ns);
  Cluster costly = plain_cluster();  // each hop is a message, too
  costly.nic.message_ns = 700;
  costly.exceptions = {{.rank = 3, .dies_ns = 5000}};
  const auto told = run(network_of(costly, kRanks), job);
  REQUIRE(told);
  CHECK(told.value().ends_ns[8] == about(5000 + 5 * (kLatencyNs + 700)));
  job.neighbours = {};
  CHECK(contains(with_death(5000).error().message, "waits forever"));
}

// Rank 0, the last of the chain, is slow, and dies while rank 1, on the same host, waits for their only CPU, which
// rank 0 gives up whenever the root has sent nothing new.
TEST_CASE("who dies at work leaves its CPU to others") {
  Cluster cluster = plain_cluster();
  cluster.ranks_per_host = 2, cluster.cpus.per_host = 1, cluster.links.slots = 128;
  cluster.local.message_ns = cluster.nic.message_ns = 700;
  cluster.exceptions = {{.rank = 0, .slowdown = 1000}, {.rank = 0, .dies_ns = 20'000}, {.rank = 2, .slowdown = 4}};
  const std::vector<int> order{2, 1, 0};
  const Job job{.schedule = [&](int rank) { return chain_from(2, rank, order, 64); }, .block_elems = 64};
  const auto outcome = run(network_of(cluster, 3), job);
  REQUIRE(outcome);
  CHECK(outcome.value().failed == 0);
  CHECK(outcome.value().ends_ns[1] > 500'000);
}

TEST_CASE("messages, bytes and additions take a CPU's time") {
  Cluster cluster = plain_cluster();
  cluster.nic.message_ns = 700;
  cluster.nic.byte_ns = 0.03;
  cluster.cpus.summed_byte_ns = 0.05;
  const double part = 1 << 16, end = 700 + 0.03 * part, hop = part / kBytesPerNs + kLatencyNs;
  const double expected = end + hop + (2 * end + 2 * 0.05 * part) + hop + end;
  const SimulatedOperation of{.bytes = 1 << 17};
  CHECK(ns_of(network_of(cluster, 2), of, Algo::kRing) == about(expected));

  cluster.exceptions = {{.host = 1, .slowdown = 3}};
  const double slow = 3 * end + hop + (2 * end + 2 * 0.05 * part) + hop + 3 * end;
  const double middle = end + hop + 3 * (2 * end + 2 * 0.05 * part) + hop + end;
  CHECK(ns_of(network_of(cluster, 2), of, Algo::kRing) == about(std::max(slow, middle)));
}

TEST_CASE("what does not fit the caches costs more for each byte that is moved or added up") {
  constexpr uint64_t kAllBytes = 1 << 17;
  const double part = kAllBytes / 2.0, hop = part / kBytesPerNs + kLatencyNs;
  Cluster cluster = plain_cluster();
  cluster.cpus.far_byte_ns = 0.05;
  const auto ns_with = [&](double cache_bytes) {
    cluster.cpus.cache_bytes = cache_bytes;
    return ns_of(network_of(cluster, 2), {.bytes = kAllBytes}, Algo::kRing);
  };
  CHECK(ns_with(0) == about(2 * hop));  // everything fits the cache
  CHECK(ns_with(2 * kAllBytes) == about(2 * hop));
  // Four times half of it is sent or received, and twice that is read for the sums.
  CHECK(ns_with(2 * kAllBytes - 1) == about(2 * hop + (4 + 2) * 0.05 * part));
  cluster.ranks_per_host = 3;  // two of them are used, in the same caches
  CHECK(ns_with(4 * kAllBytes) == ns_with(0));
  CHECK(ns_with(4 * kAllBytes - 1) > ns_with(0));
}

TEST_CASE("who sends waits for a free slot") {
  constexpr uint32_t kChunks = 20, kSlots = 3;
  constexpr double kMessageNs = 1000, kSlowdown = 7;
  Cluster cluster = plain_cluster();
  cluster.nic = {1e15, kLatencyNs, kMessageNs, 0};
  cluster.links.slots = kSlots;
  cluster.exceptions = {{.host = 1, .slowdown = kSlowdown}};
  const auto order = natural(2);
  const Job job{.schedule = [&](int rank) { return chain_from(0, rank, order, kChunks); }, .block_elems = 16 * kChunks};
  const auto outcome = run(network_of(cluster, 2), job);
  REQUIRE(outcome);
  // The last message leaves when the previous message in its slot has been taken.
  const double taken = kMessageNs + kLatencyNs + (kChunks - kSlots) * kSlowdown * kMessageNs;
  CHECK(outcome.value().ends_ns[0] == about(taken + kMessageNs, 1e-6));
  CHECK(outcome.value().ns == about(taken + kSlots * kSlowdown * kMessageNs, 1e-6));
}

// A ring of two halves of 1 MiB: each is sent twice, in several messages per lane.
TEST_CASE("messages are as long as the library's, whatever joins the ranks") {
  struct Joined {
    const char* by;
    bool shares_memory, rdma;
    int ranks_per_host, nics;
    uint64_t slot_bytes, slots, lanes;
  };
  for (const Joined& j :
       {Joined{"TCP", true, false, 1, 1, 65088, 16, 2}, Joined{"TCP, two networks", true, false, 1, 2, 130176, 16, 2},
        Joined{"RDMA", true, true, 1, 2, 256 << 10, 4, 2}, Joined{"memory", true, true, 2, 1, 128 << 10, 4, 1},
        Joined{"TCP on one host", false, false, 2, 1, 576 << 10, 4, 1}}) {
    Cluster cluster = plain_cluster();
    cluster.links.shares_memory = j.shares_memory;
    cluster.links.rdma = j.rdma;
    cluster.ranks_per_host = j.ranks_per_host;
    cluster.nics_per_host = j.nics;
    cluster.links.slots = cluster.links.slot_bytes = 0;
    const Network network = network_of(cluster, 2);
    const auto outcome = run(network, {.bytes = 2 << 20}, Algo::kRing);
    INFO(j.by);
    REQUIRE(outcome);
    CHECK(network.sizes().slots == j.slots);
    CHECK(outcome.value().messages == 2 * 2 * j.lanes * (((1 << 20) / j.lanes - 1) / j.slot_bytes + 1));
  }
}

TEST_CASE("two lanes keep a network busy while each waits for its messages") {
  constexpr int kRanks = 4;
  const SimulatedOperation of{.bytes = 16 << 20};
  const double bound = 2 * (kRanks - 1) * static_cast<double>(of.bytes) / kRanks / kBytesPerNs;
  for (const char* name : {"ring", "direct"}) {
    Cluster cluster = plain_cluster();
    cluster.links.slots = cluster.links.slot_bytes = 0;
    CHECK(ns_of(network_of(cluster, kRanks), of, algo_named(name)) < 1.05 * bound);
    cluster.nic.bytes_per_second /= 10;  // now one lane is enough
    CHECK(ns_of(network_of(cluster, kRanks), of, algo_named(name)) < 1.15 * 10 * bound);
  }
}

TEST_CASE("ranks that share a CPU take turns") {
  Cluster cluster = plain_cluster();
  cluster.ranks_per_host = 2;
  cluster.local = {1e15, 0, 1000, 0};
  const SimulatedOperation of{.bytes = 1 << 10};
  const double alone = ns_of(network_of(cluster, 2), of, Algo::kRing);
  CHECK(alone == about(4 * 1000, 0.001));
  cluster.cpus.per_host = 1;
  CHECK(ns_of(network_of(cluster, 2), of, Algo::kRing) == about(2 * alone, 0.001));
}

TEST_CASE("a slow wire holds the ring up for each of its chunks") {
  constexpr int kRanks = 8;
  const double part = 1 << 20, slow = kBytesPerNs / 10, ticks = 2 * (kRanks - 1);
  Cluster cluster = plain_cluster();
  cluster.exceptions = {{.from_host = 2, .to_host = 3, .bytes_per_second = slow * 1e9}};
  const SimulatedOperation of{.bytes = kRanks * (1 << 20)};
  const double ns = ns_of(network_of(cluster, kRanks), of, Algo::kRing);
  CHECK(ns >= ticks * part / slow + kLatencyNs);
  CHECK(ns <= ticks * (kLatencyNs + part / slow) + kRanks * (kLatencyNs + part / kBytesPerNs));
  // No data go in the other direction.
  cluster.exceptions = {{.from_host = 3, .to_host = 2, .bytes_per_second = slow * 1e9}};
  CHECK(ns_of(network_of(cluster, kRanks), of, Algo::kRing) == about(ticks * (kLatencyNs + part / kBytesPerNs)));
}

TEST_CASE("who starts late holds all up") {
  Cluster cluster = plain_cluster();
  const SimulatedOperation of{.bytes = 8};
  const double in_time = ns_of(network_of(cluster, 8), of, algo_named("doubling"));
  cluster.exceptions = {{.rank = 5, .starts_late_ns = 1e6}};
  CHECK(ns_of(network_of(cluster, 8), of, algo_named("doubling")) == about(in_time + 1e6, 1e-5));
}

TEST_CASE("two racks: what a ring, and what a hierarchy sends between them") {
  const Network network = network_of(uneven_cluster(), 24);
  const auto between = [&](Algo algo) {
    const auto outcome = run(network, {.bytes = 24 << 10}, algo);
    REQUIRE(outcome);
    uint64_t bytes = 0;
    for (size_t wire = 0; wire < network.wires().size(); wire++)
      if (contains(network.wire_name(static_cast<int>(wire)), "rack 0, out")) bytes += outcome.value().wire_bytes[wire];
    return bytes;
  };
  CHECK(between(Algo::kRing) == 2 * 23 * (1 << 10));
  CHECK(between(algo_named("hierarchical")) == 2 * 7 * 3 * (1 << 10));
}

TEST_CASE("what is sent is what arrives, by every algorithm, and the same in every run") {
  const Network network = network_of(uneven_cluster(), 24);
  const Planner planner = planner_of(network);
  for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
                                      Collective::kBroadcast, Collective::kReduce, Collective::kAllToAll}) {
    const SimulatedOperation of{.collective = collective, .bytes = 3 << 20, .root = 7};
    for (const Algo algo : algorithms_of(planner, of, Algo::kAuto)) {
      const auto outcome = run(network, of, algo), again = run(network, of, algo);
      REQUIRE(outcome);
      uint64_t out = 0, in = 0;
      for (size_t wire = 0; wire < network.wires().size(); wire++) {
        const std::string name = network.wire_name(static_cast<int>(wire));
        if (contains(name, "rack")) continue;
        (contains(name, ", out") ? out : in) += outcome.value().wire_bytes[wire];
      }
      CHECK(out == outcome.value().bytes);
      CHECK(in == outcome.value().bytes);
      if (collective == Collective::kAllReduce && algo == Algo::kRing) CHECK(out == 2 * 23 * of.bytes);
      CHECK(again.value().ns == outcome.value().ns);
      CHECK(again.value().events == outcome.value().events);
      CHECK(again.value().wire_bytes == outcome.value().wire_bytes);
    }
  }
}

TEST_CASE("ranks that are alike are simulated once, and it takes the same time") {
  const auto even_cluster = [](int hosts_per_rack) {
    Cluster cluster = uneven_cluster();
    cluster.racks = 0;
    cluster.hosts_per_rack = hosts_per_rack;
    cluster.ranks_per_host = 4;
    cluster.cpus.per_host = 0;
    // What goes to other hosts counts as well for what has left a host's caches.
    cluster.cpus.cache_bytes = 256 << 10, cluster.cpus.evicted_byte_ns = 1;
    return cluster;
  };
  for (const int hosts_per_rack : {2, 64})
    for (const int n : {16, 32, 64})
      for (const char* name : {"ring", "circulant", "hierarchical"}) {
        const Network network = network_of(even_cluster(hosts_per_rack), n);
        const Algo algo = algo_named(name);
        SimulatedOperation of{.bytes = static_cast<uint64_t>(n) << 15};
        const auto few = run(network, of, algo);
        of.traces = true;  // traces need all ranks
        const auto all = run(network, of, algo);
        REQUIRE(few);
        REQUIRE(all);
        INFO(name << " n=" << n << " hosts_per_rack=" << hosts_per_rack);
        CHECK(few.value().ns == about(all.value().ns));
        CHECK(few.value().ends_ns.size() == static_cast<size_t>(n));
        CHECK(*std::min_element(few.value().ends_ns.begin(), few.value().ends_ns.end()) > 0);
        CHECK(few.value().messages == all.value().messages);
        CHECK(few.value().bytes == all.value().bytes);
        CHECK(few.value().events < all.value().events);
        CHECK(few.value().wire_bytes == all.value().wire_bytes);
      }
  // No rank is like a slow one.
  Cluster cluster = even_cluster(64);
  cluster.exceptions = {{.rank = 5, .slowdown = 3}};
  SimulatedOperation of{.bytes = 1 << 20};
  const auto slow = run(network_of(cluster, 16), of, Algo::kRing);
  of.traces = true;
  const auto traced = run(network_of(cluster, 16), of, Algo::kRing);
  REQUIRE(slow);
  CHECK(slow.value().ns == traced.value().ns);
  CHECK(slow.value().events == traced.value().events);
}

TEST_CASE("what is too much is refused before it takes all memory") {
  const Network network = network_of(plain_cluster(), 64);
  const auto refused = run(network, {.bytes = 1 << 20, .most_steps = 100}, Algo::kTree);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kInvalidUsage);
  CHECK(contains(refused.error().message, "64 ranks take more than 100 steps"));
  const Network two = network_of(plain_cluster(), 2);
  CHECK(run(two, {.bytes = 1 << 10, .most_steps = 100}, Algo::kRing));
  CHECK(!run(two, {.bytes = 1 << 10, .row = 101, .most_steps = 100}, Algo::kRing));
}

TEST_CASE("schedules that do not fit together are told of") {
  const Network network = network_of(plain_cluster(), 2);
  const auto order = natural(2);
  Job job{.block_elems = 64};
  job.schedule = [&](int rank) { return chain_from(rank, rank, order, 2); };
  const auto alone = run(network, job);
  REQUIRE(!alone);
  CHECK(contains(alone.error().message, "only rank"));
  // In both of its lanes.
  job.schedule = [&](int rank) {
    Schedule schedule{.rank = rank, .n_ranks = 2, .n_chunks = 1};
    const Step out{.send = 1, .local = {Buffer::kInput, 0}}, in{.recv = 0, .store = {Buffer::kOutput, 0}};
    for (int lane = 0; lane < 2; lane++) schedule.lanes.push_back({0, {rank == 0 ? out : in}});
    return schedule;
  };
  const auto shared = run(network, job);
  REQUIRE(!shared);
  CHECK(contains(shared.error().message, "two lanes of rank 0 use the link to rank 1"));
  // Each rank waits for the other's first message.
  job.schedule = [&](int rank) {
    Schedule schedule{.rank = rank, .n_ranks = 2, .n_chunks = 1};
    schedule.lanes.push_back({0, {Step{.recv = 1 - rank}, Step{.send = 1 - rank, .local = {Buffer::kInput, 0}}}});
    return schedule;
  };
  const auto forever = run(network, job);
  REQUIRE(!forever);
  CHECK(contains(forever.error().message, "rank 0 waits forever in lane 0, round 0, step 0"));
}

// One message there, one back; with a CPU for each rank, or one for both.
TEST_CASE("a CPU that goes on with another rank takes its time") {
  Cluster cluster = plain_cluster();
  cluster.ranks_per_host = 2;
  cluster.local = {1e15, 100, 20, 0};
  cluster.cpus.switch_ns = 700;
  const auto ns_with = [&](int n_cpus) {
    cluster.cpus.per_host = n_cpus;
    return ns_of(network_of(cluster, 2), {.bytes = 1 << 10}, algo_named("doubling"));
  };
  CHECK(ns_with(2) == about(20 + 100 + 20, 1e-5));
  // The second rank sends after a switch, receives what has arrived meanwhile, and its own message arrives.
  CHECK(ns_with(1) == about(20 + 700 + 20 + 100 + 700 + 20, 1e-5));
}

TEST_CASE("what is not worked out beforehand costs something before it begins") {
  Cluster cluster = plain_cluster();
  cluster.ranks_per_host = 2;
  cluster.cpus.operation_ns = 300;
  const Network network = network_of(cluster, 2), free = network_of(plain_cluster(), 2);
  const auto more = [&](uint64_t bytes, Algo algo) {
    return ns_of(network, {.bytes = bytes}, algo) - ns_of(free, {.bytes = bytes}, algo);
  };
  CHECK(more(1 << 10, Algo::kRing) == about(0));
  CHECK(more(1 << 10, Algo::kTree) == about(300, 1e-5));
  CHECK(more(64 << 10, Algo::kRing) == about(300, 1e-5));
  CHECK(ns_of(network, {.bytes = 64 << 10, .row = 3}, Algo::kRing) -
            ns_of(free, {.bytes = 64 << 10, .row = 3}, Algo::kRing) ==
        about(300, 1e-5));
  cluster.links.slot_bytes = 256;  // makes 4 KiB take several rounds
  const Network in_rounds = network_of(cluster, 2);
  cluster.cpus.operation_ns = 0;
  const double free_ns = ns_of(network_of(cluster, 2), {.bytes = 4 << 10}, Algo::kRing);
  CHECK(ns_of(in_rounds, {.bytes = 4 << 10}, Algo::kRing) - free_ns == about(300, 1e-5));
}

TEST_CASE("a trace tells of every message, and of the waits between") {
  const auto outcome = run(network_of(plain_cluster(), 3), {.bytes = 3 << 10, .traces = true}, Algo::kRing);
  REQUIRE(outcome);
  const auto& spans = outcome.value().spans;
  const auto messages =
      std::count_if(spans.begin(), spans.end(), [](const Span& s) { return s.kind == Span::kMessage; });
  CHECK(static_cast<uint64_t>(messages) == outcome.value().messages);
  for (const Span& span : spans) CHECK(span.end_ns <= outcome.value().ns);
}

}  // namespace
}  // namespace tutti::sim::testing
