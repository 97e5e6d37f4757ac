// The cost model: what must hold with any prices, and what is common knowledge about algorithms.
#include <algorithm>
#include <cmath>

#include "catch.h"
#include "plan/planner.h"

using namespace tutti;

namespace {

constexpr Collective kWithAlgorithms[] = {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce,
                                          Collective::kAllGather, Collective::kReduceScatter};
constexpr uint64_t kSizes[] = {0, 1, 64, 4096, 100000, 1 << 20, 1 << 26, uint64_t{1} << 40};

Facts facts_of(int n_ranks, int cpus) {
  return {.n_ranks = n_ranks, .machine = {n_ranks, cpus, cpus}, .largest_host = n_ranks};
}

// Calls visit(collective, algo) for all existing combinations.
template <class Visit>
void for_each_way(Visit visit) {
  for (const Collective collective : kWithAlgorithms)
    for (const Algorithm* algorithm : algorithms()) {
      INFO(traits(collective).name << " by " << algorithm->name);
      visit(collective, algo_named(algorithm->name));
    }
}

double cost(Collective collective, Algo algo, uint64_t bytes, const Facts& facts) {
  return price_ns(rank_cost_of(collective, algo, bytes, facts), facts, built_in_prices());
}

}  // namespace

TEST_CASE("cost: more bytes never cost less, and everything costs something") {
  for (const int n : {2, 3, 8, 100})
    for_each_way([&](Collective collective, Algo algo) {
      const Facts facts = facts_of(n, n);
      double before = 0;
      for (const uint64_t bytes : kSizes) {
        const double now = cost(collective, algo, bytes, facts);
        CHECK(std::isfinite(now));
        CHECK(now > 0);
        CHECK(now >= before);
        before = now;
      }
    });
}

TEST_CASE("cost: more ranks never cost less") {
  for (const uint64_t bytes : kSizes)
    for_each_way([&](Collective collective, Algo algo) {
      // Powers of two only: other numbers must fold.
      for (int n = 2; n < 1000; n *= 2)
        CHECK(cost(collective, algo, bytes, facts_of(2 * n, 2 * n)) >=
              0.999 * cost(collective, algo, bytes, facts_of(n, n)));
    });
}

TEST_CASE("cost: a rank alone copies") {
  for_each_way([](Collective collective, Algo algo) {
    CHECK(cost(collective, algo, 1000, facts_of(1, 1)) ==
          Catch::Approx(2000 * built_in_prices().shm.byte));  // reads, writes
  });
}

TEST_CASE("cost: fewer CPUs never make it cheaper, and each price counts") {
  for_each_way([&](Collective collective, Algo algo) {
    for (const int hosts : {1, 4}) {
      Facts roomy = facts_of(8, 8), oversubscribed = facts_of(8, 2);
      for (Facts* facts : {&roomy, &oversubscribed}) facts->hosts = hosts, facts->largest_host = 8 / hosts;
      const RankCost cost = rank_cost_of(collective, algo, 1 << 20, roomy),
                     more = rank_cost_of(collective, algo, 1 << 20, oversubscribed);
      CHECK(more.here.messages >= cost.here.messages);
      CHECK(more.wire.bytes >= cost.wire.bytes);
      CHECK(more.summed_bytes >= cost.summed_bytes);
      CHECK((cost.out_bytes > 0) == (hosts > 1));
      Prices prices = built_in_prices();
      const double before = price_ns(cost, roomy, prices);
      double dearer = 0;
      for (const NamedPrice& price : by_name(prices)) {
        *price.value *= 2;
        CHECK(price_ns(cost, roomy, prices) >= before);
        dearer = std::max(dearer, price_ns(cost, roomy, prices) - before);
        *price.value /= 2;
      }
      CHECK(dearer > 0);
    }
  });
}

TEST_CASE("cost: ranks that share CPUs wait for their turns, and for each other's work") {
  const Facts roomy = facts_of(8, 8), crowded = facts_of(8, 2);  // four ranks per CPU
  const RankCost three_hops{.here = {.hops = 3}};
  Prices hops, turns;
  hops.shm.hop = turns.shm.turn = 10;
  CHECK(price_ns(three_hops, roomy, hops) == 3 * 10);
  CHECK(price_ns(three_hops, crowded, hops) == 0);
  CHECK(price_ns(three_hops, roomy, turns) == 0);
  CHECK(price_ns(three_hops, crowded, turns) == 3 * 4 * 10);
  const RankCost alone = rank_cost_of(Collective::kAllReduce, Algo::kRing, 1 << 20, roomy),
                 shared = rank_cost_of(Collective::kAllReduce, Algo::kRing, 1 << 20, crowded);
  CHECK(shared.here.messages == Catch::Approx(4 * alone.here.messages));
  CHECK(shared.here.bytes == Catch::Approx(4 * alone.here.bytes));
  CHECK(shared.summed_bytes == Catch::Approx(4 * alone.summed_bytes));
}

TEST_CASE("cost: bytes are far where all buffers of a host do not fit its caches") {
  Facts facts = facts_of(8, 8);
  facts.cache_bytes = 8 << 20;
  const auto far = [&](uint64_t bytes) {
    return rank_cost_of(Collective::kAllReduce, Algo::kRing, bytes, facts).far_bytes;
  };
  CHECK(far(512 << 10) == 0);  // eight inputs and outputs fit the cache
  CHECK(far((512 << 10) + 4) > 0);
  const auto far_of_blocks = [&](uint64_t bytes) {
    return rank_cost_of(Collective::kAllGather, Algo::kRing, bytes, facts).far_bytes;
  };
  CHECK(far_of_blocks((8 << 20) / (8 * 9)) == 0);  // each rank's own block, and all eight
  CHECK(far_of_blocks((8 << 20) / (8 * 9) + 1) > 0);
}

TEST_CASE("cost: shared memory, TCP within a host, TCP between hosts and RDMA have each their price") {
  const RankCost within{.here = {.hops = 1}}, between{.wire = {.hops = 1}};
  Prices prices;
  prices.shm.hop = 1, prices.loopback.hop = 2, prices.network.hop = 4, prices.rdma.hop = 8;
  Facts facts = facts_of(2, 2);
  CHECK(price_ns(within, facts, prices) == 1);
  CHECK(price_ns(between, facts, prices) == 4);
  facts.shares_memory = false, facts.has_rdma = true;
  CHECK(price_ns(within, facts, prices) == 2);
  CHECK(price_ns(between, facts, prices) == 8);
}

TEST_CASE("cost: each hop takes as long as the way, and between racks longer") {
  Facts near = facts_of(8, 1);
  near.machine.ranks = near.largest_host = 1, near.hosts = 8, near.shares_memory = false;
  Facts far = near;
  far.wire_latency_ns = 40'000'000;
  const auto more = [&](const char* algo, uint64_t bytes) {
    return cost(Collective::kAllReduce, algo_named(algo), bytes, far) -
           cost(Collective::kAllReduce, algo_named(algo), bytes, near);
  };
  CHECK(more("ring", 1024) == Catch::Approx(14 * 40e6).epsilon(0.01));
  CHECK(more("oneshot", 1024) == Catch::Approx(40e6).epsilon(0.01));
  CHECK(more("circulant", 1024) == Catch::Approx(6 * 40e6).epsilon(0.01));  // there and back
  CHECK(more("doubling", 1024) == Catch::Approx(3 * 40e6).epsilon(0.01));
  CHECK(more("ring", 16 << 20) == Catch::Approx(14 * 40e6).epsilon(0.1));  // of one round
  near.racks.n = 2, near.racks.largest = 4;
  far = near;
  far.racks.latency_ns = 40'000'000;
  CHECK(more("racks", 1024) == Catch::Approx(2 * 40e6).epsilon(0.01));
}

TEST_CASE("cost: between racks bytes take as long as they need there") {
  Facts facts = facts_of(8, 1);
  facts.machine.ranks = facts.largest_host = 1, facts.hosts = 8, facts.shares_memory = false;
  facts.racks.n = 2, facts.racks.largest = 4;
  for (const char* const algo : {"ring", "oneshot", "circulant", "doubling", "racks"}) {
    INFO(algo);
    facts.racks.bytes_per_second = 0;
    const double fast = cost(Collective::kAllReduce, algo_named(algo), 1 << 26, facts);
    facts.racks.bytes_per_second = facts.wire_bytes_per_second / 100;
    // Each rack sends the other one half of the sum and half of its inputs at least.
    const double least = 1e9 * (1 << 26) / static_cast<double>(facts.racks.bytes_per_second);
    CHECK(cost(Collective::kAllReduce, algo_named(algo), 1 << 26, facts) >= std::max(least, fast));
  }
}

TEST_CASE("cost: of CPUs and network the longer one counts, and most of the other") {
  Facts facts = facts_of(2, 2);
  facts.wire_bytes_per_second = 1'000'000'000;
  const RankCost cost{.summed_bytes = 300, .out_bytes = 60};  // 60 ns in the network
  Prices prices;
  prices.summed_byte = 0.1;
  CHECK(price_ns(cost, facts, prices) == Catch::Approx(60 + 30 * kOneByOne));
  prices.summed_byte = 1;
  CHECK(price_ns(cost, facts, prices) == Catch::Approx(300 + 60 * kOneByOne));
}

TEST_CASE("cost: hosts that are far apart have a round trip's bytes under way, within limits") {
  Facts far = facts_of(4, 4);
  far.hosts = far.largest_host = 2;
  far.wire_bytes_per_second = 125'000'000;
  far.wire_latency_ns = 2'000'000;
  far.racks.latency_ns = 500'000;
  CHECK(under_way_bytes(far) == 0);  // all in one rack: a round trip of 4 ms
  far.racks.n = 2;
  CHECK(static_cast<double>(under_way_bytes(far)) == Catch::Approx(2 * 625'000 / 2));  // 5 ms; shared by two ranks
  far.wire_latency_ns = 1'000'000'000;
  CHECK(under_way_bytes(far) == 16 << 20);
  far.hosts = 1;
  CHECK(under_way_bytes(far) == 0);
}

TEST_CASE("cost: on a smaller host, ranks take turns between hosts") {
  Facts facts = facts_of(12, 12);
  facts.hosts = 3, facts.largest_host = 5;
  const auto messages = [&](int smallest) {
    facts.smallest_host = smallest;
    return rank_cost_of(Collective::kAllReduce, algo_named("hierarchical"), 8, facts).wire.messages;
  };
  CHECK(messages(5) == messages(0));
  CHECK(messages(3) == 2 * messages(5));
  CHECK(messages(2) == 3 * messages(5));
  CHECK(messages(1) == 5 * messages(5));
}

TEST_CASE("cost: facts are read again from what people read") {
  Facts facts = facts_of(8, 3);
  facts.hosts = 2, facts.largest_host = 5, facts.has_rdma = true, facts.wire_bytes_per_second = 12'500'000'000;
  facts.machine.cpus = 7, facts.cache_bytes = 123'456'789;
  for (const bool shares_memory : {true, false}) {
    facts.shares_memory = shares_memory;
    facts.racks.n = shares_memory ? 1 : 3, facts.racks.largest = shares_memory ? 0 : 4;
    facts.fast_bytes_per_second = facts.racks.bytes_per_second = shares_memory ? 0 : 25'000'000'001;
    for (const uint64_t latency_ns : {0, 40'000'000}) {
      facts.wire_latency_ns = latency_ns, facts.racks.latency_ns = latency_ns / 3;
      facts.smallest_host = latency_ns > 0 ? 3 : 0;
      const auto read = facts_from_text("before\n" + to_text(facts) + "after; 7 ns between hosts");
      REQUIRE(read);
      CHECK(to_text(*read) == to_text(facts));
      CHECK(read->racks.latency_ns == facts.racks.latency_ns);
      CHECK(read->smallest_host == facts.smallest_host);
    }
  }
  CHECK_FALSE(facts_from_text("facts: 8 ranks"));
}

TEST_CASE("cost: what everybody knows of algorithms") {
  const Facts eight = facts_of(8, 8), many = facts_of(256, 256);
  const auto all_reduce = [](Algo algo, uint64_t bytes, const Facts& facts) {
    return cost(Collective::kAllReduce, algo, bytes, facts);
  };
  CHECK(all_reduce(algo_named("oneshot"), 8, eight) < all_reduce(Algo::kRing, 8, eight));
  CHECK(all_reduce(Algo::kTree, 8, many) < all_reduce(Algo::kRing, 8, many));
  CHECK(all_reduce(Algo::kTree, 8, many) < all_reduce(algo_named("oneshot"), 8, many));
  CHECK(all_reduce(Algo::kRing, 1 << 28, eight) < all_reduce(algo_named("oneshot"), 1 << 28, eight));
  CHECK(all_reduce(Algo::kRing, 1 << 28, eight) < all_reduce(Algo::kTree, 1 << 28, eight));
}

TEST_CASE("cost: two lanes between hosts that are fast or far for a message's length, where a chunk takes several") {
  Facts hosts = facts_of(4, 4);
  hosts.hosts = 4, hosts.largest_host = 1;
  constexpr uint64_t kMessage = 64 << 10, kGigabit = 125'000'000;
  const auto lanes = [&](Collective collective, Algo algo, uint64_t bytes) {
    return lanes_of(collective, algo, bytes, hosts);
  };
  hosts.wire_bytes_per_second = 25 * kGigabit;
  CHECK(lanes(Collective::kAllReduce, Algo::kRing, 4 * kMessage) == 1);
  CHECK(lanes(Collective::kAllReduce, Algo::kRing, 4 * kMessage + 4) == 2);
  CHECK(lanes(Collective::kAllGather, Algo::kRing, kMessage) == 1);
  CHECK(lanes(Collective::kAllGather, Algo::kRing, kMessage + 4) == 2);
  for (const char* name : {"direct", "hierarchical", "racks"})
    CHECK(lanes(Collective::kAllReduce, algo_named(name), 1 << 30) == 2);
  for (const char* name : {"circulant", "tree", "chain"})
    CHECK(lanes(Collective::kAllReduce, algo_named(name), 1 << 30) == 1);
  CHECK(lanes(Collective::kBroadcast, Algo::kRing, 1 << 30) == 1);
  hosts.wire_bytes_per_second = 10 * kGigabit;
  CHECK(lanes(Collective::kAllReduce, Algo::kRing, 1 << 30) == 1);
  hosts.wire_latency_ns = 100'000;
  CHECK(lanes(Collective::kAllReduce, Algo::kRing, 1 << 30) == 2);
  hosts.largest_host = 4;  // they share the bytes in flight
  CHECK(lanes(Collective::kAllReduce, Algo::kRing, 1 << 30) == 1);
  // More lanes make no difference within a host.
  CHECK(lanes_of(Collective::kAllReduce, Algo::kRing, 1 << 30, facts_of(4, 4)) == 1);
}

// A one-shot all-reduce cannot expose its input, so with it registered memory is no faster than other memory.
TEST_CASE("cost: two ranks in shared memory add up parts from 64 KiB on") {
  const Facts two = facts_of(2, 2);
  for (uint64_t bytes = 8; bytes <= 1 << 30; bytes *= 2) {
    CAPTURE(bytes);
    const double in_parts = cost(Collective::kAllReduce, Algo::kDirect, bytes, two),
                 one = cost(Collective::kAllReduce, algo_named("oneshot"), bytes, two);
    if (bytes <= 16 << 10) CHECK(one < in_parts);
    if (bytes >= 64 << 10) CHECK(in_parts < one);
  }
}

namespace {

// What schedules send, on `hosts` of `each` ranks: the messages of the busiest rank, and how many times the bytes of a
// block (or of everything, if there are no blocks) leave the busiest host.
struct Sent {
  double messages = 0, out = 0;
};
Sent sent_by_schedules(Collective collective, Algo algo, int hosts, int each) {
  std::vector<RankLocation> locations(static_cast<size_t>(hosts * each));
  for (size_t rank = 0; rank < locations.size(); rank++)
    locations[rank].host.bytes[0] = static_cast<uint8_t>(rank / static_cast<size_t>(each));
  const Planner planner(0, lay_out(locations), Algo::kAuto, false);
  std::vector<double> messages(locations.size()), out(static_cast<size_t>(hosts));
  for (int rank = 0; rank < hosts * each; rank++) {
    const Schedule schedule = planner.schedule_of(rank, collective, algo, 0);
    for (const Lane& lane : schedule.lanes)
      for (const Step step : lane.steps) {
        if (step.send < 0) continue;
        messages[static_cast<size_t>(rank)]++, messages[static_cast<size_t>(step.send)]++;
        if (step.send / each != rank / each) out[static_cast<size_t>(rank / each)] += 1.0 / schedule.n_chunks;
      }
  }
  return {*std::max_element(messages.begin(), messages.end()), *std::max_element(out.begin(), out.end())};
}

}  // namespace

// Approximately, with some excess in the bytes that leave a host: links may be idle at times, or receive more.
TEST_CASE("cost: messages and what leaves a host are what schedules send") {
  constexpr uint64_t kBytes = 32 << 10;
  for (const int hosts : {3, 4, 5, 6, 7, 8})
    for (const int each : {1, 2, 3})
      for_each_way([&](Collective collective, Algo algo) {
        const Algorithm& algorithm = *algorithm_of(own_algo(collective, algo));
        if (algorithm.is_for_racks) return;
        if (algorithm.is_for_full_hosts && each == 1) return;
        Facts facts = facts_of(hosts * each, hosts * each);
        facts.hosts = hosts, facts.largest_host = each;
        const Sent sent = sent_by_schedules(collective, algo, hosts, each);
        const RankCost cost = rank_cost_of(collective, algo, kBytes, facts);
        const double paid = cost.out_bytes / kBytes, messages = cost.here.messages + cost.wire.messages;
        INFO(hosts << " hosts of " << each << ": sent " << sent.out << " times in " << sent.messages
                   << " messages, paid " << paid << " in " << messages);
        CHECK(paid >= (each == 1 ? 0.9 : 0.7) * sent.out);
        if (each == 1 && collective != Collective::kReduce) CHECK(paid <= 1.4 * sent.out);
        CHECK(messages >= 0.5 * sent.messages);
        CHECK(messages <= 2 * sent.messages);
      });
}
