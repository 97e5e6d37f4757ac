// The costs of all builders' schedules: hops, messages, slots, scratch.
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

int hops_of(const std::string& name, int n, uint32_t lanes = 1) {
  return hops(all_ranks(builder(name), natural_order(n), n / 3, lanes));
}

// Messages per chunk.
long sends_of(const std::string& name, int n, uint32_t lanes = 1) {
  const auto schedules = all_ranks(builder(name), natural_order(n), n / 3, lanes);
  return sends(schedules) / schedules[0].n_chunks;
}

int ceil_log2(int n) {
  return floor_log2(2 * n - 1);
}

// Half of the ranks are handed over, then half of the rest, and so on; in each exchange two messages are in flight at
// once.
int circulant_hops(int n) {
  int hops = 0;
  for (int left = n; left > 1; left = (left + 1) / 2) hops += (left / 2 + 1) / 2;
  return hops;
}

}  // namespace

TEST_CASE("hops: rings and chains") {
  for (int n = 2; n <= kMostRanks; n++) {
    INFO("n=" << n);
    for (const uint32_t lanes : {1u, 2u, 9u})
      for (const char* name : {"ring broadcast", "ring reduce", "ring all-gather", "ring reduce-scatter"})
        CHECK(hops_of(name, n, lanes) == n - 1);
    CHECK(hops_of("chain all-reduce", n) == 2 * (n - 1));
  }
}

TEST_CASE("hops: what is logarithmic") {
  for (int n = 2; n <= kMostRanks; n++) {
    INFO("n=" << n);
    const int folds = std::has_single_bit(static_cast<unsigned>(n)) ? 0 : 2;
    CHECK(hops_of("tree reduce", n) <= 1 + floor_log2(n - 1));
    CHECK(hops_of("circulant all-gather", n) == circulant_hops(n));
    CHECK(hops_of("circulant reduce-scatter", n) == circulant_hops(n));
    CHECK(hops_of("circulant all-reduce", n) == 2 * circulant_hops(n));
    const int doubling = hops_of("doubling all-reduce", n);
    CHECK(doubling >= floor_log2(n));
    CHECK(doubling <= floor_log2(n) + folds);  // fewer if the folded ranks' hops overlap with others
    CHECK(hops_of("barrier", n) == ceil_log2(n));
  }
}

TEST_CASE("hops: what is direct") {
  for (int n = 2; n <= kMostRanks; n++) {
    INFO("n=" << n);
    for (const char* name : {"one-shot all-reduce", "direct reduce-scatter", "one-shot reduce", "direct all-gather",
                             "direct broadcast", "all-to-all", "gather", "scatter"}) {
      CHECK(hops_of(name, n) == 1);
    }
    for (const char* name : {"two-shot all-reduce", "linear all-reduce"}) CHECK(hops_of(name, n) == 2);
    CHECK(hops_of("two-shot reduce", n) == (n == 2 ? 1 : 2));
  }
}

TEST_CASE("messages: nothing is sent more often than it must be") {
  for (int n = 1; n <= kMostRanks; n++) {
    const int p = 1 << floor_log2(n);
    for (const uint32_t lanes : {1u, 2u, 5u}) {
      INFO("n=" << n << " lanes=" << lanes);
      const long once = n - 1;
      for (const char* name :
           {"ring broadcast", "tree broadcast", "tree broadcast, slow hosts", "ring reduce", "tree reduce",
            "one-shot reduce", "chain reduce", "direct broadcast", "gather", "scatter"}) {
        INFO(name);
        // The last rank of a chain sends the sum to the root.
        CHECK(sends_of(name, n, lanes) == once + (name == std::string_view("chain reduce") && n > 1));
      }
      for (const char* name : {"ring all-reduce", "tree all-reduce", "circulant all-reduce", "two-shot all-reduce",
                               "linear all-reduce", "chain all-reduce"}) {
        INFO(name);
        CHECK(sends_of(name, n, lanes) == 2 * once);
      }
      for (const char* name :
           {"ring all-gather", "circulant all-gather", "direct all-gather", "ring reduce-scatter",
            "circulant reduce-scatter", "direct reduce-scatter", "all-to-all", "one-shot all-reduce"}) {
        INFO(name);
        CHECK(sends_of(name, n, lanes) == n * once);
      }
    }
    CHECK(sends_of("doubling all-reduce", n) == static_cast<long>(p) * floor_log2(n) + 2 * (n - p));
    CHECK(sends_of("barrier", n) == static_cast<long>(n) * ceil_log2(n));
  }
}

TEST_CASE("peers: logarithmically many where depth is logarithmic") {
  for (int n = 1; n <= kMostRanks; n++) {
    for (const char* name :
         {"circulant all-gather", "circulant reduce-scatter", "doubling all-reduce", "circulant all-reduce"}) {
      for (const Schedule& schedule : all_ranks(builder(name), natural_order(n), 0)) {
        std::vector<bool> peers(static_cast<size_t>(n));
        for (const Lane& lane : schedule.lanes) {
          for (const Step& step : lane.steps) {
            if (step.send >= 0) peers[static_cast<size_t>(step.send)] = true;
          }
        }
        const int ways = name == std::string_view("circulant all-reduce") ? 2 : 1;  // there and back
        CHECK(std::count(peers.begin(), peers.end(), true) <= ways * ceil_log2(n) + 1);
      }
    }
  }
}

TEST_CASE("slots: one fewer than it says is a deadlock") {
  for (const Builder& b : kBuilders) {
    for (const int n : {2, 3, 8, 13, 33}) {
      if ((kSanitized && n > 13) || b.min_slots == 1) continue;
      for (const uint32_t lanes : {1u, 2u, 5u}) {
        const auto schedules = all_ranks(b, natural_order(n), 0, lanes);
        INFO(b.name << " n=" << n << " lanes=" << lanes);
        CHECK(verdict(schedules, {.goal = b.goal, .slots = b.min_slots}) == "");
        // Running ahead takes enough messages: two in an exchange, and in half of a ring one that is passed on.
        const bool is_circulant = std::string_view(b.name).starts_with("circulant");
        if (n < (is_circulant ? 4 : b.goal == Goal::kAllReduce ? 2 : 3)) continue;
        CHECK(verdict(schedules, {.goal = b.goal, .slots = b.min_slots - 1}).find("deadlock") != std::string::npos);
      }
    }
  }
}

TEST_CASE("scratch: no more than said") {
  for (const Builder& b : kBuilders) {
    for (int n = 1; n <= kMostRanks; n++) {
      for (const Schedule& schedule : all_ranks(b, natural_order(n), n / 2, 2)) {
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
    INFO(b.name);
    CHECK(sends(all_ranks(b, natural_order(1), 0, 2)) == 0);
    for (const int n : {1, 2, 3, 8}) {
      for (const uint32_t lanes : {1u, 2u, 7u}) {
        for (const Schedule& schedule : all_ranks(b, natural_order(n), n / 2, lanes))
          for (const Lane& lane : schedule.lanes) CHECK_FALSE(lane.steps.empty());
      }
    }
  }
}
