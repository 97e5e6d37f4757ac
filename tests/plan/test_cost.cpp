// The cost model: what must hold whatever the prices, and that prices are found again from measurements.
#include <cmath>

#include "catch.h"
#include "plan/cost.h"

using namespace tutti;

namespace {

constexpr Collective kWithAlgorithms[] = {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce,
                                          Collective::kAllGather, Collective::kReduceScatter};
constexpr uint64_t kSizes[] = {0, 1, 64, 4096, 100000, 1 << 20, 1 << 26, uint64_t{1} << 40};

Ground ground_of(int n_ranks, int cpus) {
  return {n_ranks, n_ranks, cpus, 1, n_ranks, 128 << 10, 16 << 10};
}

// Calls visit(collective, plan) for all that there are.
template <class Visit>
void for_each_plan(Visit visit) {
  for (const Collective collective : kWithAlgorithms)
    for (const Algo algo : kAlgos)
      for (const uint8_t lanes : {1, 2}) {
        INFO(traits(collective).name << " by " << algo_name(algo) << " x" << int{lanes});
        visit(collective, Plan{algo, lanes});
      }
}

double cost(Collective collective, Plan plan, uint64_t bytes, const Ground& ground) {
  return price_of(load_of(collective, plan, bytes, ground), default_prices(true, ground));
}

}  // namespace

TEST_CASE("cost: more bytes never cost less, and everything costs something") {
  for (const int n : {2, 3, 8, 100})
    for_each_plan([&](Collective collective, Plan plan) {
      const Ground ground = ground_of(n, n);
      double before = 0;
      for (const uint64_t bytes : kSizes) {
        const double now = cost(collective, plan, bytes, ground);
        CHECK(std::isfinite(now));
        CHECK(now > 0);
        CHECK(now >= before);
        before = now;
      }
    });
}

TEST_CASE("cost: more ranks never cost less") {
  for (const uint64_t bytes : kSizes)
    for_each_plan([&](Collective collective, Plan plan) {
      // Powers of two: others have to fold.
      for (int n = 2; n < 1000; n *= 2)
        CHECK(cost(collective, plan, bytes, ground_of(2 * n, 2 * n)) >=
              0.999 * cost(collective, plan, bytes, ground_of(n, n)));
    });
}

TEST_CASE("cost: fewer CPUs never make it cheaper, and each part of the load counts") {
  for_each_plan([&](Collective collective, Plan plan) {
    const Load roomy = load_of(collective, plan, 1 << 20, ground_of(8, 8));
    const Load crowded = load_of(collective, plan, 1 << 20, ground_of(8, 2));
    CHECK(crowded.hops == roomy.hops);
    CHECK(crowded.messages >= roomy.messages);
    CHECK(crowded.copied_bytes >= roomy.copied_bytes);
    CHECK(crowded.summed_bytes >= roomy.summed_bytes);
    for (int part = 0; part < 4; part++) {
      Prices dearer{1, 1, 1, 1, 1};
      const double before = price_of(roomy, dearer);
      (part == 0 ? dearer.hop : part == 1 ? dearer.message : part == 2 ? dearer.copied_byte : dearer.summed_byte) *= 2;
      CHECK(price_of(roomy, dearer) >= before);
    }
  });
}

TEST_CASE("cost: what everybody knows of algorithms") {
  const Ground eight = ground_of(8, 8), many = ground_of(256, 256);
  const auto all_reduce = [](Algo algo, uint64_t bytes, const Ground& ground) {
    return cost(Collective::kAllReduce, {algo, 1}, bytes, ground);
  };
  CHECK(all_reduce(Algo::kOneShot, 8, eight) < all_reduce(Algo::kRing, 8, eight));
  CHECK(all_reduce(Algo::kTree, 8, many) < all_reduce(Algo::kRing, 8, many));
  CHECK(all_reduce(Algo::kTree, 8, many) < all_reduce(Algo::kOneShot, 8, many));
  CHECK(all_reduce(Algo::kRing, 1 << 28, eight) < all_reduce(Algo::kOneShot, 1 << 28, eight));
  CHECK(all_reduce(Algo::kRing, 1 << 28, eight) < all_reduce(Algo::kTree, 1 << 28, eight));
}

TEST_CASE("cost: prices are found again from what operations took") {
  const Ground ground = ground_of(4, 4);
  const Prices true_prices{1500, 300, 0.07, 0.2, 1}, guess{200, 100, 0.1, 0.2, 1};
  std::vector<Sample> samples;
  for (const Algo algo : {Algo::kRing, Algo::kTree, Algo::kDirect, Algo::kOneShot})
    for (const uint64_t bytes : {64, 8 << 10, 128 << 10, 4 << 20}) {
      const Load load = load_of(Collective::kAllReduce, {algo, 1}, bytes, ground);
      samples.push_back({load, price_of(load, true_prices)});
    }
  const Prices found = fit_prices(samples, guess);
  for (const Sample& sample : samples) CHECK(std::abs(price_of(sample.load, found) / sample.ns - 1) < 0.2);
  CHECK(std::abs(found.hop / true_prices.hop - 1) < 0.3);
  // Nothing measured: the guess. And noise never gives a price below nothing.
  CHECK(std::abs(fit_prices({}, guess).hop - guess.hop) < 1e-6);
  samples.assign(3, {load_of(Collective::kAllReduce, {Algo::kRing, 1}, 64, ground), 1});
  const Prices least = fit_prices(samples, guess);
  for (const double price : {least.hop, least.message, least.copied_byte, least.summed_byte}) CHECK(price > 0);
}
