// Races: who wins, how many operations they take, and what disturbs them.
#include "catch.h"
#include "plan/race.h"

using namespace tutti;

namespace {

constexpr Plan kA{Algo::kDirect, 1}, kB{Algo::kRing, 2}, kC{Algo::kTree, 1};

// Runs the race of one rank to its end; the number of operations that it took.
template <class Time>
int finish(Race& race, Time time) {
  for (int operations = 0; operations < 10000; operations++) {
    if (race.round_is_over() && race.end_round(race.news())) return operations;
    race.record(time(race.current(), operations), false);
  }
  return -1;
}

}  // namespace

TEST_CASE("race: the fastest wins, in a bounded number of operations") {
  for (const double expected_ns : {1.0, 1000.0, 1e6, 1e9}) {
    Race race(std::array{kA, kB, kC}, expected_ns, false);
    const int operations = finish(race, [](Plan plan, int) { return plan == kB ? 100 : plan == kC ? 110 : 120; });
    CHECK(operations > 0);
    CHECK(operations <= 3 * (4 * 1 + 4 * 50));
    REQUIRE(race.results().size() == 3);
    CHECK(race.results()[0].plan == kB);
    CHECK(race.results()[0].ns == 100);
  }
}

TEST_CASE("race: long operations are tried less often, and who is far behind drops out") {
  const auto time = [](Plan plan, int) { return plan == kA ? 100 : 1000; };
  Race shorter(std::array{kA, kB, kC}, 1000, false), longer(std::array{kA, kB, kC}, 1e8, false);
  const int often = finish(shorter, time), seldom = finish(longer, time);
  CHECK(seldom < often);
  CHECK(seldom == 3 * (1 + 1));  // one round
  CHECK(longer.results()[0].plan == kA);
}

TEST_CASE("race: where ranks run ahead of others short operations are tried more often") {
  const auto time = [](Plan, int) { return 100; };
  for (const double expected_ns : {1000.0, 1e8}) {
    Race in_step(std::array{kA, kB}, expected_ns, false), ahead(std::array{kA, kB}, expected_ns, true);
    const int usual = finish(in_step, time), more = finish(ahead, time);
    CHECK((expected_ns == 1000 ? more > 2 * usual : more == usual));
    CHECK(more <= 2 * (4 * 1 + 4 * 200));
  }
}

TEST_CASE("race: where ranks run ahead of others neither bad turns nor a lucky one decide") {
  const auto round_of = [](int operations) { return operations / (2 * (1 + 200)); };
  Race bad(std::array{kA, kB}, 1000, true);
  int operations = 0;
  finish(bad, [&](Plan plan, int) { return plan == kB ? 300 : round_of(operations++ * 2) < 2 ? 600 : 200; });
  CHECK(bad.results()[0].plan == kA);
  Race lucky(std::array{kA, kB}, 1000, true);
  operations = 0;
  finish(lucky, [&](Plan plan, int) { return plan == kB ? 250 : round_of(operations++ * 2) == 1 ? 200 : 300; });
  CHECK(lucky.results()[0].plan == kB);
}

TEST_CASE("race: first operations and single disturbances do not count") {
  Race race(std::array{kA, kB}, 1e8, false);
  int of_a = 0;
  finish(race, [&](Plan plan, int) {
    if (plan == kB) return 120;
    of_a++;
    return of_a <= 1 || of_a == 5 ? 100000 : 100;
  });
  CHECK(race.results()[0].plan == kA);
}

TEST_CASE("race: one bad turn of short operations does not end an entrant's race") {
  Race race(std::array{kA, kB}, 1000, false);
  int of_a = 0;
  finish(race, [&](Plan plan, int) { return plan == kB ? 300 : ++of_a == 20 ? 20000 : 200; });
  CHECK(race.results()[0].plan == kA);
}
