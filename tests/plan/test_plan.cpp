// What the planner chooses.
#include <set>

#include "catch.h"
#include "plan/planner.h"

using namespace tutti;

namespace {

Call call_of(Collective collective, uint64_t count, DataType dtype, RedOp op = RedOp::kSum) {
  Call call;
  call.collective = collective;
  call.count = count;
  call.dtype = dtype;
  call.op = op;
  return call;
}

}  // namespace

TEST_CASE("planner: small floats are summed in one place, whatever is forced") {
  for (const Algo forced : kAlgos) {
    Planner planner(0, flat_layout(4), forced, false);
    for (const uint64_t count : {uint64_t{1}, uint64_t{100000}}) {
      const Algo algo = planner.choose(call_of(Collective::kAllReduce, count, DataType::kBfloat16)).algo;
      CHECK((algo == Algo::kDirect || algo == Algo::kOneShot || algo == Algo::kStar));
      CHECK(planner.choose(call_of(Collective::kAllReduce, count, DataType::kBfloat16, RedOp::kMax)).algo == forced);
      CHECK(planner.choose(call_of(Collective::kAllReduce, count, DataType::kFloat32)).algo == forced);
      CHECK(planner.choose(call_of(Collective::kAllGather, count, DataType::kBfloat16)).algo == forced);
    }
    CHECK(Planner(0, flat_layout(2), forced, false).choose(call_of(Collective::kReduce, 7, DataType::kFloat16)).algo ==
          forced);
  }
}

TEST_CASE("planner: deterministic groups sum in one place, of every type and size") {
  Planner planner(1, flat_layout(3), Algo::kRing, true);
  for (int type = 0; type < kDataTypes; type++)
    for (const uint64_t count : {uint64_t{0}, uint64_t{3}, uint64_t{1} << 30}) {
      const Algo algo = planner.choose(call_of(Collective::kReduceScatter, count, static_cast<DataType>(type))).algo;
      CHECK((algo == Algo::kDirect || algo == Algo::kOneShot));
    }
  CHECK(planner.choose(call_of(Collective::kBroadcast, 1, DataType::kInt8)).algo == Algo::kRing);
}

TEST_CASE("planner: every plan that it may take is right, with the fewest slots") {
  constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce,
                                         Collective::kAllGather, Collective::kReduceScatter};
  constexpr Goal kGoals[] = {Goal::kAllReduce, Goal::kBroadcast, Goal::kReduce, Goal::kAllGather, Goal::kReduceScatter};
  for (int n = 1; n <= 9; n++)
    for (size_t c = 0; c < std::size(kCollectives); c++) {
      Planner planner(0, flat_layout(n), Algo::kAuto, false);
      for (const Candidate& candidate :
           planner.choice(call_of(kCollectives[c], 1000, DataType::kFloat32), 4000).candidates) {
        INFO(n << " ranks, " << traits(kCollectives[c]).name << " by " << algo_name(candidate.plan.algo) << " x"
               << int{candidate.plan.lanes});
        std::vector<Schedule> schedules;
        for (int r = 0; r < n; r++)
          schedules.push_back(
              Planner(r, flat_layout(n), Algo::kAuto, false).schedule(kCollectives[c], candidate.plan, n - 1));
        CheckOptions options;
        options.goal = kGoals[c];
        options.root = n - 1;
        options.rounds = 2;
        const auto checked = check(schedules, options);
        INFO((checked ? "" : checked.error().message));
        CHECK(checked);
      }
    }
}

namespace {

// A group whose ranks follow the same planner's rules, each with times of its own.
struct Ranks {
  std::vector<Planner> planners;
  bool registered = false;
  explicit Ranks(int n, bool races = true) {
    for (int r = 0; r < n; r++) {
      planners.emplace_back(r, flat_layout(n), Algo::kAuto, false);
      const Ground ground{n, n, n, 1, n, 128 << 10, 16 << 10};
      planners.back().start(ground, Tuning{default_prices(true, ground), true, {}}, races);
    }
  }

  // One operation on all ranks, as the communicator does it. The plan that they took.
  template <class Time>
  Plan run(const Call& call, uint64_t bytes, Time time) {
    std::vector<Choice*> choices;
    for (Planner& planner : planners) choices.push_back(&planner.choice(call, bytes));
    for (size_t r = 0; r < planners.size(); r++)
      if (!choices[r]->race) planners[r].count(*choices[r]);
    if (choices[0]->race && choices[0]->race->round_is_over()) {
      Race::News slowest = choices[0]->race->news();
      for (Choice* choice : choices) {
        REQUIRE(choice->race->round_is_over());
        const Race::News times = choice->race->news();
        for (size_t i = 0; i < slowest.size(); i++) slowest[i] = std::max(slowest[i], times[i]);
      }
      for (size_t r = 0; r < planners.size(); r++) planners[r].end_round(*choices[r], call, bytes, slowest);
    }
    for (size_t r = 0; r < planners.size(); r++) {
      REQUIRE(choices[r]->race.has_value() == choices[0]->race.has_value());
      if (!choices[r]->race) continue;
      planners[r].begin_turn(*choices[r]);
      planners[r].record(*choices[r], call, bytes, time(static_cast<int>(r), choices[r]->plan), registered);
    }
    for (Choice* choice : choices) REQUIRE(choice->plan == choices[0]->plan);
    return choices[0]->plan;
  }
};

}  // namespace

TEST_CASE("planner: ranks with different times try the same plans and settle on the same one") {
  const Call call = call_of(Collective::kAllReduce, 1 << 16, DataType::kFloat32);
  const uint64_t bytes = 4 << 16;
  Ranks ranks(4);
  // The third of those tried is the fastest for the group, though not for rank 0. All sizes lend here.
  const std::vector<Candidate> candidates = ranks.planners[0].choice(call, bytes).candidates;
  const auto time = [&](int rank, Plan plan) -> int64_t {
    const bool best = plan == candidates[2].plan;
    return rank == 0 ? (best ? 90000 : 50000 + rank) : (best ? 91000 : 100000 + rank);
  };
  std::set<int> tried;
  for (int i = 0; i < 1000; i++) {
    const Plan plan = ranks.run(call, bytes, time);
    for (int c = 0; c < 3; c++)
      if (candidates[static_cast<size_t>(c)].plan == plan) tried.insert(c);
  }
  CHECK(tried.size() == 3);
  for (Planner& planner : ranks.planners) {
    CHECK(planner.choice(call, bytes).plan == candidates[2].plan);
    CHECK(planner.choice(call, bytes).why == Choice::Why::kRaced);
    CHECK(planner.has_news());
    CHECK(planner.tuning().raced == ranks.planners[0].tuning().raced);
  }
  // What they have found serves the next group.
  Planner next(0, flat_layout(4), Algo::kAuto, false);
  next.start(ranks.planners[0].ground(), ranks.planners[0].tuning(), true);
  CHECK(next.choice(call, bytes).plan == candidates[2].plan);
  CHECK(next.choice(call, bytes).why == Choice::Why::kRemembered);
  CHECK_FALSE(next.has_news());
}

TEST_CASE("planner: a winner that takes another time than when it won is tried against the others again") {
  const Call call = call_of(Collective::kAllReduce, 1 << 16, DataType::kFloat32);
  const uint64_t bytes = 4 << 16;
  Ranks ranks(4);
  const std::vector<Candidate> candidates = ranks.planners[0].choice(call, bytes).candidates;
  const Plan first = candidates[1].plan, second = candidates[0].plan;
  bool moved = false;
  int operations = 0, others = 0;
  const auto time = [&](int, Plan plan) -> int64_t {
    if (!moved) return plan == first ? 20000 : 90000;
    return plan == first ? 80000 : plan == second ? 40000 : 95000;
  };
  const auto run = [&](int times) {
    for (operations = others = 0; operations < times; operations++) others += !(ranks.run(call, bytes, time) == first);
  };
  run(1000);
  REQUIRE(ranks.planners[0].choice(call, bytes).plan == first);
  run(50000);
  CHECK(others == 0);  // looks are at the winner only
  // One slow stretch is no reason.
  const auto disturbed = [&](int, Plan) -> int64_t { return operations++ % 20000 < 60 ? 500000 : 20000; };
  for (int i = 0; i < 60000; i++) CHECK(ranks.run(call, bytes, disturbed) == first);
  moved = true;
  run(10000);
  CHECK(ranks.planners[0].choice(call, bytes).plan == second);
  CHECK(ranks.planners[0].choice(call, bytes).why == Choice::Why::kRaced);
  CHECK(ranks.planners[0].tuning().raced.begin()->second[0].plan == second);
  // Races that are off stay off.
  Planner off(0, flat_layout(4), Algo::kAuto, false);
  off.start(ranks.planners[0].ground(), ranks.planners[0].tuning(), false);
  for (int i = 0; i < 100000; i++) off.count(off.choice(call, bytes));
  CHECK_FALSE(off.choice(call, bytes).race);
}

TEST_CASE("planner: what is fast with registered memory is found out and remembered apart") {
  const Call call = call_of(Collective::kAllReduce, 1 << 16, DataType::kFloat32);
  const uint64_t bytes = 4 << 16;
  Ranks ranks(2);
  const std::vector<Candidate> candidates = ranks.planners[0].choice(call, bytes).candidates;
  const Plan ordinary = candidates[1].plan, registered = candidates[0].plan;
  const auto time = [&](int, Plan plan) -> int64_t {
    return plan == (ranks.registered ? registered : ordinary) ? 20000 : 22000;  // a difference that no look doubts
  };
  const auto settle = [&](int operations) {
    Plan plan;
    for (int i = 0; i < operations; i++) plan = ranks.run(call, bytes, time);
    return plan;
  };
  CHECK(settle(20000) == ordinary);
  ranks.registered = true;
  CHECK(settle(20000) == registered);
  CHECK(ranks.planners[0].choice(call, bytes).why == Choice::Why::kRaced);
  CHECK(ranks.planners[0].tuning().raced.size() == 2);
  ranks.registered = false;
  CHECK(settle(20000) == ordinary);
}

TEST_CASE("planner: nothing is tried where one plan is forced, where races are off, and for small one-shot sums") {
  const Call large = call_of(Collective::kAllReduce, 1 << 16, DataType::kFloat32);
  Ranks off(4, false);
  CHECK_FALSE(off.planners[0].choice(large, 4 << 16).race);
  Planner forced(0, flat_layout(4), Algo::kRing, false);
  forced.start(off.planners[0].ground(), off.planners[0].tuning(), true, Ways::kCopy);
  CHECK_FALSE(forced.choice(large, 4 << 16).race);
  // The way to send changes no bits, so that is tried.
  forced.start(off.planners[0].ground(), off.planners[0].tuning(), true);
  CHECK(forced.choice(call_of(Collective::kAllReduce, 1 << 18, DataType::kFloat32), 4 << 18).race);
  Ranks two(2);
  for (const uint64_t count : {0, 1, 2, 16, 128, 256}) {
    const Choice& choice =
        two.planners[0].choice(call_of(Collective::kAllReduce, count, DataType::kFloat32), 4 * count);
    CHECK(choice.plan.algo == Algo::kOneShot);
    CHECK_FALSE(choice.race);
  }
}

TEST_CASE("planner: TUTTI_PROTO leaves one way to send, of what can be lent") {
  Ranks ranks(4);
  for (const Ways ways : {Ways::kCopy, Ways::kLend, Ways::kBoth}) {
    CHECK(parse_ways(ways_name(ways)).value() == ways);
    Planner planner(0, flat_layout(4), Algo::kAuto, false);
    planner.start(ranks.planners[0].ground(), ranks.planners[0].tuning(), true, ways);
    int lending = 0, copying = 0, small = 0;
    const Call call = call_of(Collective::kAllGather, 1 << 20, DataType::kInt8);
    for (const Candidate& c : planner.choice(call, 1 << 20).candidates) (c.plan.lends ? lending : copying)++;
    for (const Candidate& c : planner.choice(call_of(Collective::kAllGather, 1, DataType::kInt8), 1).candidates)
      small += c.plan.lends;
    CHECK((lending > 0) == (ways != Ways::kCopy));
    CHECK((copying > 0) == (ways != Ways::kLend));
    CHECK(small == 0);
  }
  CHECK(parse_ways("push").error().message.find("TUTTI_PROTO=push") != std::string::npos);
}

TEST_CASE("planner: a remembered plan that would be wrong for the call is passed over") {
  const Ground ground{4, 4, 4, 1, 4, 128 << 10, 16 << 10};
  Tuning tuning{default_prices(true, ground), true, {}};
  const Call call = call_of(Collective::kAllReduce, 1 << 16, DataType::kBfloat16);
  tuning.raced[{Collective::kAllReduce, true, false, 18}] = {{{Algo::kRing, 1}, 1}};
  Planner planner(0, flat_layout(4), Algo::kAuto, false);
  planner.start(ground, tuning, true);
  const Algo algo = planner.choice(call, 2 << 16).plan.algo;
  CHECK((algo == Algo::kDirect || algo == Algo::kOneShot || algo == Algo::kStar));
}

TEST_CASE("planner: it explains what it chose and why") {
  Ranks ranks(4);
  const Call call = call_of(Collective::kAllReduce, 1 << 16, DataType::kFloat32);
  std::string text = ranks.planners[0].explain(call, 4 << 16);
  INFO(text);
  CHECK(text.find("AllReduce of 262144 bytes (65536 x float, sum) over 4 ranks") == 0);
  for (const char* name : {"ring x2", "tree", "direct", "oneshot", "halving", "doubling", "star"})
    CHECK(text.find(name) != std::string::npos);
  CHECK(text.find("not tried out yet") != std::string::npos);
  for (int i = 0; i < 1000; i++) ranks.run(call, 4 << 16, [](int, Plan plan) { return 1000 * plan.lanes; });
  text = ranks.planners[0].explain(call, 4 << 16);
  CHECK(text.find("the fastest when the closest were tried out") != std::string::npos);
  CHECK(text.find("1.00\n") != std::string::npos);
  Planner forced(0, flat_layout(2), Algo::kTree, true);
  CHECK(forced.explain(call_of(Collective::kBroadcast, 8, DataType::kInt8), 8).find("forced") != std::string::npos);
  CHECK(forced.explain(call, 4 << 16).find("deterministic") != std::string::npos);
  CHECK(forced.explain(call_of(Collective::kAllToAll, 8, DataType::kInt8), 8).find("one way only") !=
        std::string::npos);
}

TEST_CASE("planner: names of algorithms, and what it says of others") {
  for (const Algo algo : kAlgos) CHECK(parse_algo(algo_name(algo)).value() == algo);
  CHECK(parse_algo("").value() == Algo::kAuto);
  const auto wrong = parse_algo("comb");
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().message.find("'comb'") != std::string::npos);
  CHECK(wrong.error().message.find("halving") != std::string::npos);
}
