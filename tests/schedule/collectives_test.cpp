// What the schedules of all builders cost: hops, messages, slots, scratch.
#include <bit>

#include "collectives.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

constexpr int kMostRanks = kSanitized ? 13 : 33;

const Builder& builder(const std::string& name) {
  const auto at = std::find_if(std::begin(kBuilders), std::end(kBuilders), [&](auto& b) { return b.name == name; });
  REQUIRE(at != std::end(kBuilders));
  return *at;
}

int hops_of(const std::string& name, int n, uint32_t n_chunks = 1, uint32_t width = 1) {
  return hops(all_ranks(builder(name), natural_order(n), n / 3, n_chunks, width));
}

long sends_of(const std::string& name, int n, uint32_t n_chunks, uint32_t width = 1) {
  return sends(all_ranks(builder(name), natural_order(n), n / 3, n_chunks, width));
}

int ceil_log2(int n) {
  return floor_log2(2 * n - 1);
}

}  // namespace

TEST_CASE("hops: rings and chains") {
  for (int n = 2; n <= kMostRanks; n++) {
    INFO("n=" << n);
    for (uint32_t chunks : {1u, 2u, 9u}) {
      CHECK(hops_of("ring reduce", n, chunks, 2) == n - 1);
      // One hop of n-1 per chunk is hidden behind the next one's first message; two ranks have no more than that one.
      const int in_turn = n > 2 ? static_cast<int>(chunks) * (n - 2) + 1 : static_cast<int>(chunks + 1) / 2;
      CHECK(hops_of("ring all-gather", n, chunks, 1) == in_turn);
      CHECK(hops_of("ring reduce-scatter", n, chunks, 1) == in_turn);
      CHECK(hops_of("ring all-gather", n, chunks, chunks) == n - 1);
      CHECK(hops_of("ring reduce-scatter", n, chunks, chunks) == n - 1);
    }
  }
}

TEST_CASE("hops: what is logarithmic") {
  for (int n = 2; n <= kMostRanks; n++) {
    INFO("n=" << n);
    const int folds = std::has_single_bit(static_cast<unsigned>(n)) ? 0 : 2;
    const uint32_t wide = static_cast<uint32_t>(n);
    CHECK(hops_of("tree reduce", n, 9) <= 1 + floor_log2(n - 1));
    CHECK(hops_of("circulant all-gather", n, 1, wide) == ceil_log2(n));
    CHECK(hops_of("circulant reduce-scatter", n, 1, wide) == ceil_log2(n));
    const int doubling = hops_of("doubling all-reduce", n);
    CHECK(doubling >= floor_log2(n));
    CHECK(doubling <= floor_log2(n) + folds);  // fewer where those who have folded in hide behind the others
    CHECK(hops_of("circulant all-reduce", n, wide, wide) == 2 * ceil_log2(n));
    CHECK(hops_of("barrier", n) == ceil_log2(n));
    // Each message waits for the one before it where nothing runs ahead.
    CHECK(hops_of("circulant all-gather", n, 1, 1) == n - 1);
    CHECK(hops_of("circulant reduce-scatter", n, 1, 1) == n - 1);
  }
}

TEST_CASE("hops: what is direct") {
  for (int n = 2; n <= kMostRanks; n++) {
    INFO("n=" << n);
    for (const char* name : {"one-shot all-reduce", "direct reduce-scatter", "direct reduce", "direct all-gather",
                             "direct broadcast", "all-to-all", "gather", "scatter"}) {
      CHECK(hops_of(name, n) == 1);
    }
    CHECK(hops_of("two-shot all-reduce", n, static_cast<uint32_t>(n)) == 2);
    CHECK(hops_of("two-shot reduce", n, static_cast<uint32_t>(n)) == 2);
  }
}

TEST_CASE("messages: nothing is sent more often than it must be") {
  for (int n = 1; n <= kMostRanks; n++) {
    const int p = 1 << floor_log2(n);
    for (uint32_t chunks : {1u, 2u, 5u, 32u}) {
      INFO("n=" << n << " chunks=" << chunks);
      const long once = static_cast<long>(n - 1) * chunks;
      for (const char* name :
           {"ring reduce", "tree reduce", "direct reduce", "direct broadcast", "gather", "scatter"}) {
        CHECK(sends_of(name, n, chunks) == once);
      }
      for (const char* name : {"circulant all-reduce", "two-shot all-reduce"}) {
        CHECK(sends_of(name, n, chunks) == 2 * once);
      }
      for (const char* name :
           {"ring all-gather", "circulant all-gather", "direct all-gather", "ring reduce-scatter",
            "circulant reduce-scatter", "direct reduce-scatter", "all-to-all", "one-shot all-reduce"}) {
        CHECK(sends_of(name, n, chunks) == n * once);
      }
      CHECK(sends_of("doubling all-reduce", n, chunks) ==
            (static_cast<long>(p) * floor_log2(n) + 2 * (n - p)) * chunks);
    }
    CHECK(sends_of("barrier", n, 1) == static_cast<long>(n) * ceil_log2(n));
  }
}

TEST_CASE("peers: logarithmically many where depth is logarithmic") {
  for (int n = 1; n <= kMostRanks; n++) {
    for (const char* name :
         {"circulant all-gather", "circulant reduce-scatter", "doubling all-reduce", "circulant all-reduce"}) {
      for (const Schedule& schedule : all_ranks(builder(name), natural_order(n), 0, 4)) {
        std::vector<bool> peers(static_cast<size_t>(n));
        for (const Lane& lane : schedule.lanes) {
          for (const Step& step : lane.steps) {
            if (step.send >= 0) peers[static_cast<size_t>(step.send)] = true;
          }
        }
        const int ways = name == std::string_view("circulant all-reduce") ? 2 : 1;  // there, and back
        CHECK(std::count(peers.begin(), peers.end(), true) <= ways * ceil_log2(n) + 1);
      }
    }
  }
}

TEST_CASE("slots: one fewer than it says is a deadlock") {
  for (const Builder& b : kBuilders) {
    for (int n : {2, 3, 8, 13, 33}) {
      if (kSanitized && n > 13) continue;
      for (uint32_t width : {1u, 2u, 5u}) {
        const uint32_t needed = min_slots(b, width);
        if (needed == 1 || (width > 1 && !b.has_width)) continue;
        // An exchange, or all of an all-gather or reduce-scatter, must have messages enough to run ahead at all.
        const auto chunks = static_cast<uint32_t>(b.goal == Goal::kAllReduce ? 8 * n : 8);
        const auto schedules = all_ranks(b, natural_order(n), 0, chunks, width);
        INFO(b.name << " n=" << n << " width=" << width);
        CHECK(verdict(schedules, {.goal = b.goal, .slots = needed}) == "");
        const bool runs_ahead = b.min_slots > 0 || b.goal == Goal::kAllReduce || width <= static_cast<uint32_t>(n) / 4;
        if (!runs_ahead) continue;
        CHECK(verdict(schedules, {.goal = b.goal, .slots = needed - 1}).find("deadlock") != std::string::npos);
      }
    }
  }
}

TEST_CASE("scratch: no more than said") {
  for (const Builder& b : kBuilders) {
    for (int n = 1; n <= kMostRanks; n++) {
      for (const Schedule& schedule : all_ranks(b, natural_order(n), n / 2, 3, 2)) {
        const bool one = b.name == std::string("tree reduce");
        const bool half = b.name == std::string("circulant reduce-scatter");
        INFO(b.name << " n=" << n);
        const bool two = b.name == std::string("tree reduce, slow hosts");
        CHECK(schedule.n_scratch <= (half ? static_cast<uint32_t>(n) / 2 : two ? 2u : one ? 1u : 0u));
      }
    }
  }
}

TEST_CASE("builders: one rank copies, no lane is empty") {
  for (const Builder& b : kBuilders) {
    const std::vector<Schedule> alone = all_ranks(b, natural_order(1), 0, 3, 2);
    INFO(b.name);
    CHECK(sends(alone) == 0);
    for (int n : {1, 2, 3, 8}) {
      for (uint32_t chunks : {1u, 2u, 7u}) {
        for (const Schedule& schedule : all_ranks(b, natural_order(n), n / 2, chunks, 2)) {
          CHECK(schedule.n_chunks == (b.goal == Goal::kBarrier ? 1 : chunks));
          for (const Lane& lane : schedule.lanes) CHECK_FALSE(lane.steps.empty());
        }
      }
    }
  }
}
