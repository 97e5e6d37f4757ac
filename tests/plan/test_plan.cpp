// What the planner chooses.
#include <algorithm>
#include <cmath>

#include "../schedule/schedule_text.h"
#include "base/env.h"
#include "catch.h"
#include "plan/planner.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

Call call_of(Collective collective, uint64_t count, DataType dtype, RedOp op = RedOp::kSum) {
  Call call;
  call.collective = collective;
  call.count = count;
  call.dtype = dtype;
  call.op = op;
  return call;
}

bool in_rank_order(Algo algo) {
  const std::string_view name = algo_name(algo);
  return name == "direct" || name == "oneshot" || name == "linear" || name == "chain";
}

}  // namespace

TEST_CASE("planner: small floats are summed in one place, whatever is forced") {
  for (const Algorithm* algorithm : algorithms()) {
    const Algo forced = algo_named(algorithm->name);
    Planner planner(0, flat_layout(4), forced, false);
    for (const uint64_t count : {uint64_t{1}, uint64_t{100000}}) {
      const Algo algo = planner.choose(call_of(Collective::kAllReduce, count, DataType::kBfloat16));
      CHECK(in_rank_order(algo));
      CHECK((algo == forced) == algorithm->keeps_rank_order);
      CHECK(planner.choose(call_of(Collective::kAllReduce, count, DataType::kBfloat16, RedOp::kMax)) == forced);
      CHECK(planner.choose(call_of(Collective::kAllReduce, count, DataType::kFloat32)) == forced);
      CHECK(planner.choose(call_of(Collective::kAllGather, count, DataType::kBfloat16)) == forced);
    }
    CHECK(Planner(0, flat_layout(2), forced, false).choose(call_of(Collective::kReduce, 7, DataType::kFloat16)) ==
          forced);
  }
}

TEST_CASE("planner: deterministic groups sum in the order of ranks, of every float and size, whatever is forced") {
  Planner planner(1, flat_layout(3), Algo::kRing, true);
  for (int type = static_cast<int>(DataType::kFloat16); type < kDataTypes; type++)
    for (const uint64_t count : {uint64_t{0}, uint64_t{3}, uint64_t{1} << 30}) {
      const Algo algo = planner.choose(call_of(Collective::kReduceScatter, count, static_cast<DataType>(type)));
      CHECK(in_rank_order(algo));
    }
  CHECK(planner.choose(call_of(Collective::kBroadcast, 1, DataType::kInt8)) == Algo::kRing);
}

namespace {

constexpr Collective kByAlgorithms[] = {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce,
                                        Collective::kAllGather, Collective::kReduceScatter};

void check_schedules(Collective collective, Algo algo, int n, bool in_rank_order, uint32_t n_lanes = 1) {
  std::vector<Schedule> schedules;
  for (int r = 0; r < n; r++)
    schedules.push_back(Planner(r, flat_layout(n), Algo::kAuto, false).schedule(collective, algo, n - 1, n_lanes));
  CheckOptions options;
  options.goal = collective;
  options.root = n - 1;
  options.rounds = 2;
  options.rank_order = in_rank_order;
  const auto checked = check(schedules, options);
  INFO((checked ? "" : checked.error().message));
  CHECK(checked);
}

}  // namespace

TEST_CASE("planner: every algorithm that it may take is right, with the fewest slots") {
  for (int n = 1; n <= 9; n++)
    for (const Collective collective : kByAlgorithms) {
      Planner planner(0, flat_layout(n), Algo::kAuto, false);
      for (const Candidate& candidate : planner.candidates(call_of(collective, 1000, DataType::kInt32), 4000)) {
        INFO(n << " ranks, " << traits(collective).name << " by " << algo_name(candidate.algo));
        check_schedules(collective, candidate.algo, n, false);
      }
    }
}

namespace {

// `n` ranks on each of `hosts` hosts with `cpus` CPUs each.
Facts facts_of(int n, int hosts, int cpus, bool shares_memory) {
  return {
      .n_ranks = n * hosts, .machine = {n, cpus, 4}, .hosts = hosts, .largest_host = n, .shares_memory = shares_memory};
}

Planner planner_of(const Facts& facts, bool deterministic = false) {
  std::vector<RankLocation> locations(static_cast<size_t>(facts.n_ranks));
  for (int r = 0; r < facts.n_ranks; r++)
    locations[static_cast<size_t>(r)].host.bytes[0] = static_cast<uint8_t>(r / facts.largest_host);
  return {0, lay_out(locations), Algo::kAuto, deterministic, facts, {built_in_prices(), "", {}}};
}

}  // namespace

TEST_CASE("planner: floats are added up in the order of ranks where memory is shared, else as no CPU decides") {
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter})
    for (const int n : {3, 4, 8})
      for (uint64_t bytes = 8; bytes <= 64 << 20; bytes *= 2) {
        INFO(traits(collective).name << " of " << bytes << " bytes by " << n);
        const Call call = call_of(collective, bytes / 4, DataType::kFloat32);
        CHECK(in_rank_order(planner_of(facts_of(n, 1, n, true)).choose(call)));
        CHECK(in_rank_order(planner_of(facts_of(n, 1, n, false), true).choose(call)));
        // Bound to fewer CPUs: the same algorithm, or one with the same bits.
        const Algo roomy = planner_of(facts_of(n, 1, n, false)).choose(call);
        for (const int cpus : {1, 2}) {
          const Algo oversubscribed = planner_of(facts_of(n, 1, cpus, false)).choose(call);
          CHECK((oversubscribed == roomy || (in_rank_order(oversubscribed) && in_rank_order(roomy))));
        }
      }
}

TEST_CASE("planner: what has the same bits in any order may take any algorithm, also in deterministic groups") {
  const auto has_ring = [](const Planner& planner, const Call& call) {
    const auto all = planner.candidates(call, 1 << 20);
    return std::any_of(all.begin(), all.end(), [](const Candidate& c) { return c.algo == Algo::kRing; });
  };
  const Planner four = planner_of(facts_of(4, 1, 4, true), true), two = planner_of(facts_of(2, 1, 2, true), true);
  CHECK(has_ring(four, call_of(Collective::kAllReduce, 1 << 18, DataType::kInt32)));
  CHECK(has_ring(four, call_of(Collective::kAllGather, 1 << 18, DataType::kFloat32)));
  CHECK_FALSE(has_ring(four, call_of(Collective::kAllReduce, 1 << 18, DataType::kFloat32)));
  CHECK(has_ring(two, call_of(Collective::kAllReduce, 1 << 18, DataType::kFloat32)));
}

TEST_CASE("planner: sums go along ranks as numbered, whatever CPUs they are bound to; what is passed on along places") {
  std::vector<RankLocation> locations(4);
  for (uint32_t r = 0; r < 4; r++) locations[r].path = {r % 2};
  const Planner bound(1, lay_out(locations), Algo::kAuto, false), loose(1, flat_layout(4), Algo::kAuto, false);
  const auto text = [](const Planner& planner, Collective collective) {
    return to_text(planner.schedule(collective, Algo::kRing, 0));
  };
  for (const Collective sum : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter})
    CHECK(text(bound, sum) == text(loose, sum));
  CHECK(text(bound, Collective::kAllGather) != text(loose, Collective::kAllGather));
  // Also with several hosts, each of which sums up its own inputs first.
  std::vector<RankLocation> placed(8), anywhere(8);
  for (uint32_t r = 0; r < 8; r++) {
    placed[r].host.bytes[0] = anywhere[r].host.bytes[0] = static_cast<uint8_t>(r / 4);
    placed[r].path = {r % 2};
  }
  const auto hierarchical = [](const std::vector<RankLocation>& ranks) {
    const Planner planner(1, lay_out(ranks), Algo::kAuto, false);
    return to_text(planner.schedule(Collective::kAllReduce, algo_named("hierarchical"), 0));
  };
  CHECK(hierarchical(placed) == hierarchical(anywhere));
}

TEST_CASE("planner: whoever has ranks stand as they are numbered gets that for sums, too") {
  std::vector<RankLocation> by_turns(4);
  for (uint32_t r = 0; r < 4; r++) by_turns[r].host.bytes[0] = static_cast<uint8_t>(r % 2);
  Layout layout = lay_out(by_turns);
  const Planner usual(1, layout, Algo::kAuto, false), flat(1, flat_layout(4), Algo::kAuto, false);
  std::sort(layout.order.begin(), layout.order.end());  // as with TUTTI_ORDER=rank
  const Planner ordered(1, layout, Algo::kAuto, false);
  const auto text = [](const Planner& planner) {
    return to_text(planner.schedule(Collective::kAllReduce, Algo::kRing, 0));
  };
  CHECK(text(ordered) == text(flat));
  CHECK(text(ordered) != text(usual));
}

TEST_CASE("planner: a choice is the same each time, and the first of the candidates") {
  const Planner planner = planner_of(facts_of(4, 1, 2, true));
  for (uint64_t bytes = 1; bytes < 1 << 26; bytes *= 3) {
    const Call call = call_of(Collective::kBroadcast, bytes, DataType::kInt8);
    const auto all = planner.candidates(call, bytes);
    CHECK(planner.choose(call) == all[0].algo);
    for (size_t i = 1; i < all.size(); i++) CHECK(all[i].predicted_ns >= all[i - 1].predicted_ns);
    CHECK(planner.estimate_ns(call, bytes) == all[0].predicted_ns);
  }
}

TEST_CASE("planner: what a rank sends itself is copied, and what it receives does not leave its host") {
  const Planner planner = planner_of(facts_of(1, 2, 4, true));  // rank 1 is on another host
  const auto ns = [&](int peer, bool sends, uint64_t bytes) {
    const std::vector<Planner::Transfer> one = {{peer, sends, bytes}};
    return planner.estimate_ns(one);
  };
  CHECK(ns(0, true, 8) < built_in_prices().shm.message);
  CHECK(ns(1, true, 8) > built_in_prices().network.hop);
  CHECK(ns(1, true, 64 << 20) > 64 << 20);  // at 1 GB/s
  CHECK(ns(1, false, 64 << 20) < 32 << 20);
}

TEST_CASE("planner: it explains what it chose and why") {
  const Planner planner = planner_of(facts_of(4, 1, 2, false));
  const Call call = call_of(Collective::kAllReduce, 1 << 16, DataType::kInt32);
  const std::string text = planner.explain(call, 4 << 16);
  INFO(text);
  CHECK(text.find("AllReduce of 262144 bytes (65536 x int32, sum) over 4 ranks") == 0);
  for (const char* name : {"ring", "tree", "direct", "oneshot", "circulant", "doubling", "linear"})
    CHECK(text.find(name) != std::string::npos);
  CHECK(text.find("4 ranks for 2 of 4 CPUs; loopback, network") != std::string::npos);
  CHECK(text.find("built in: shm.hop ") != std::string::npos);
  const Call floats = call_of(Collective::kAllReduce, 1 << 16, DataType::kFloat32);
  CHECK(planner.explain(floats, 4 << 16).find("order of the sums: fixed") != std::string::npos);
  CHECK(planner_of(facts_of(4, 1, 4, true)).explain(floats, 4 << 16).find("rank order") != std::string::npos);
  CHECK(planner_of(facts_of(16, 1, 16, true)).explain(floats, 4 << 16).find("rank order") != std::string::npos);
  CHECK(planner_of(facts_of(17, 1, 17, true)).explain(floats, 4 << 16).find("sums: fixed") != std::string::npos);
  auto prices = prices_from_text("shm.hop = 7", "a/file");
  REQUIRE(prices);
  const Planner forced(0, flat_layout(2), Algo::kTree, true, facts_of(2, 1, 2, true), std::move(prices).value());
  const std::string broadcast = forced.explain(call_of(Collective::kBroadcast, 8, DataType::kInt8), 8);
  INFO(broadcast);
  CHECK(broadcast.find("forced: tree") != std::string::npos);
  CHECK(broadcast.find("* from a/file") != std::string::npos);
  CHECK(broadcast.find("*shm.hop 7 ") != std::string::npos);
  CHECK(broadcast.find(" shm.turn ") != std::string::npos);
  CHECK(forced.explain(call_of(Collective::kAllToAll, 8, DataType::kInt8), 8).find("the only algorithm") !=
        std::string::npos);
  Facts fast = facts_of(1, 4, 4, true);
  fast.wire_bytes_per_second = 3'125'000'000;
  const Planner ring(0, flat_layout(4), Algo::kRing, false, fast, {built_in_prices(), "", {}});
  CHECK(ring.explain(call, 4 << 20).find("over 4 ranks: ring in two lanes, ") != std::string::npos);
  CHECK(ring.explain(call, 64).find("over 4 ranks: ring, ") != std::string::npos);
  // Deterministic: sums are in the order of ranks
  const Planner overruled(0, flat_layout(3), Algo::kRing, true, facts_of(3, 1, 3, true), {built_in_prices(), "", {}});
  CHECK(overruled.explain(floats, 4 << 16).find("forced: ") == std::string::npos);
}

TEST_CASE("algorithms: each row is whole: its name, what it costs, its schedules, and the bits it gives") {
  for (const Algorithm* algorithm : algorithms()) {
    INFO(algorithm->name);
    const Algo algo = parse_algo(algorithm->name).value();
    CHECK(algorithm_of(algo) == algorithm);
    CHECK(std::string(env_entry("TUTTI_ALGO").help).find(algorithm->name) != std::string::npos);
    CHECK(algorithm->all_reduce.build != nullptr);
    for (const Collective collective : kByAlgorithms) {
      const Algo own = own_algo(collective, algo);
      REQUIRE(own != Algo::kAuto);  // it has its own way, or names an algorithm that has one
      const Method& method = algorithm_of(own)->method(collective);
      REQUIRE(method.build != nullptr);
      REQUIRE(method.cost != nullptr);
      const bool in_order = algorithm_of(own)->keeps_rank_order;
      for (const int n : {algorithm->least_ranks, 6}) {
        for (const uint64_t bytes : {uint64_t{0}, uint64_t{8}, uint64_t{1} << 40}) {
          const Facts facts = facts_of(n, 1, 4, true);
          const double ns = price_ns(rank_cost_of(collective, algo, bytes, facts), facts, built_in_prices());
          CHECK((std::isfinite(ns) && ns > 0));
        }
        // Two lanes are for GPUs.
        for (const uint32_t n_lanes : {1, 2}) check_schedules(collective, algo, n, in_order, n_lanes);
      }
    }
  }
}

namespace {

// One rank on each host.
Planner planner_on(std::vector<RankLocation> locations, uint64_t rack_bytes_per_second, int rank = 0) {
  for (size_t r = 0; r < locations.size(); r++) locations[r].host.bytes[0] = static_cast<uint8_t>(r);
  Facts facts{.n_ranks = static_cast<int>(locations.size())};
  Layout layout = lay_out(locations);
  facts.racks.bytes_per_second = rack_bytes_per_second;
  add_network(layout, &facts);
  return {rank, std::move(layout), Algo::kAuto, false, facts, {built_in_prices(), "", {}}};
}
constexpr uint64_t kGigabit = 125'000'000;

// How many times the whole data goes from one set of ranks to the others.
double share_sent(Planner (*planner_of_rank)(int rank), int n, Algo algo, bool (*is_inside)(int rank)) {
  double messages = 0;
  uint32_t n_chunks = 1;
  for (int rank = 0; rank < n; rank++) {
    const Schedule schedule = planner_of_rank(rank).schedule(Collective::kAllReduce, algo, 0);
    n_chunks = schedule.n_chunks;
    for (const Lane& lane : schedule.lanes)
      for (const Step& step : lane.steps) messages += is_inside(rank) && step.send >= 0 && !is_inside(step.send);
  }
  return messages / n_chunks;
}

Planner in_two_racks(int rank) {
  return planner_on({{{}, {}, 1, kGigabit}, {{}, {}, 2, kGigabit}, {{}, {}, 1, kGigabit}, {{}, {}, 2, kGigabit}},
                    kGigabit / 5, rank);
}
Planner with_a_slow_host(int rank) {
  return planner_on({{{}, {}, 0, kGigabit}, {{}, {}, 0, kGigabit / 10}, {{}, {}, 0, kGigabit}, {{}, {}, 0, kGigabit}},
                    0, rank);
}

}  // namespace

TEST_CASE("planner: sums go once from rack to rack where little fits between them") {
  const Call call = call_of(Collective::kAllReduce, 1 << 20, DataType::kFloat32);
  const Planner planner = in_two_racks(0);
  CHECK(to_text(planner.layout()) == "0 | 2 || 1 | 3");
  const Algo algo = planner.choose(call);
  CHECK(algo_name(algo) == std::string("racks"));
  CHECK(share_sent(in_two_racks, 4, algo, [](int rank) { return rank % 2 == 0; }) == 1);
  // Otherwise `racks` is not chosen.
  for (const uint32_t other : {0u, 2u}) {
    const std::vector<RankLocation> locations(4, RankLocation{{}, {}, 1, kGigabit});
    std::vector<RankLocation> mixed = locations;
    mixed[1].rack = mixed[3].rack = other;
    const Planner roomy = planner_on(other == 0 ? locations : mixed, 0);
    CHECK(algo_name(roomy.choose(call)) != std::string("racks"));
  }
}

TEST_CASE("planner: hosts and racks are as large as they have ranks") {
  std::vector<RankLocation> locations(8, RankLocation{{}, {}, 1, kGigabit});
  for (size_t r = 0; r < 8; r++) locations[r].host.bytes[0] = static_cast<uint8_t>((r + 1) / 2);
  locations[7].rack = 2;
  Facts facts{.n_ranks = 8};
  add_network(lay_out(locations), &facts);
  CHECK(facts.hosts == 5);
  CHECK(facts.largest_host == 2);
  CHECK(facts.smallest_host == 1);
  CHECK(facts.racks.n == 2);
  CHECK(facts.racks.largest == 7);
}

TEST_CASE("planner: between a few hosts a sum goes along the ranks where that leaves each host once") {
  Facts facts = facts_of(4, 2, 4, false);
  facts.wire_bytes_per_second = 125'000'000;
  const Algo chain = algo_named("chain");
  for (const bool deterministic : {false, true}) {
    const Planner planner = planner_of(facts, deterministic);
    for (const DataType dtype : {DataType::kFloat32, DataType::kInt32})
      CHECK(planner.choose(call_of(Collective::kAllReduce, 2048, dtype), 8192) == chain);
    CHECK(planner.choose(call_of(Collective::kAllReduce, 2, DataType::kFloat32), 8) != chain);
    CHECK(planner.choose(call_of(Collective::kAllReduce, 4096, DataType::kBfloat16), 8192) != chain);
    CHECK(planner.choose(call_of(Collective::kReduceScatter, 256, DataType::kFloat32), 1024) != chain);
  }
  std::vector<RankLocation> by_turns(8);
  for (size_t r = 0; r < 8; r++) by_turns[r].host.bytes[0] = static_cast<uint8_t>(r % 2);
  const Planner planner(0, lay_out(by_turns), Algo::kAuto, false, facts, {built_in_prices(), "", {}});
  CHECK(planner.choose(call_of(Collective::kAllReduce, 2048, DataType::kFloat32), 8192) != chain);
}

TEST_CASE("planner: a slow host sends what it has and no more") {
  const Planner planner = with_a_slow_host(0);
  CHECK(planner.facts().wire_bytes_per_second == kGigabit / 10);
  CHECK(planner.facts().fast_bytes_per_second == kGigabit);
  const Algo algo = planner.choose(call_of(Collective::kAllReduce, 1 << 18, DataType::kFloat32));
  CHECK(algo == Algo::kTree);
  CHECK(share_sent(with_a_slow_host, 4, algo, [](int rank) { return rank == 1; }) == 1);
  CHECK(share_sent(with_a_slow_host, 4, Algo::kRing, [](int rank) { return rank == 1; }) == 1.5);
}

TEST_CASE("planner: names of algorithms, and what it says of others") {
  CHECK(parse_algo("").value() == Algo::kAuto);
  CHECK(parse_algo("star").value() == algo_named("linear"));  // their former names
  CHECK(parse_algo("halving").value() == algo_named("circulant"));
  CHECK(parse_algo("rabenseifner").value() == algo_named("circulant"));
  const auto wrong = parse_algo("comb");
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().message.find("'comb'") != std::string::npos);
  CHECK(wrong.error().message.find("circulant") != std::string::npos);
}
