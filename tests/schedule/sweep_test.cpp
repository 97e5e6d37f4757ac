// The proof that the planner leans on: for every number of ranks, of chunks and of slots that it may pick, and for
// every root, every contribution arrives exactly once and nothing deadlocks.
#include <cstdio>

#include "testing.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

constexpr int kMaxRanks = 33;
constexpr uint32_t kMaxChunks = 64;

// All of 1 .. 33; with a sanitizer, which is many times slower, only the sizes that differ in kind.
std::vector<int> rank_counts() {
  if (!kSanitized) {
    std::vector<int> counts = natural_order(kMaxRanks);
    for (int& n : counts) n++;
    return counts;
  }
  std::printf("thinned out because of the sanitizer: powers of two, their neighbours and a few primes only\n");
  return {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17};
}

struct Count {
  long checks = 0;
  void require(const std::vector<Schedule>& schedules, const CheckOptions& options) {
    checks++;
    const std::string said = verdict(schedules, options);
    if (said.empty()) {
      SUCCEED();  // without composing the message below 346,000 times
      return;
    }
    INFO("n=" << schedules.size() << " chunks=" << schedules[0].n_chunks << " lanes=" << schedules[0].lanes.size()
              << " root=" << options.root << " slots=" << options.slots << " rounds=" << options.rounds
              << " in_place=" << options.in_place);
    REQUIRE(said == "");
  }
};

// Every slot count with every combination of rounds and placement.
void require_all(Count& count, const std::vector<Schedule>& schedules, CheckOptions options,
                 std::initializer_list<uint32_t> all_slots) {
  for (uint32_t slots : all_slots) {
    for (uint32_t rounds : {1u, 3u}) {
      for (bool in_place : {false, true}) {
        options.slots = slots, options.rounds = rounds, options.in_place = in_place;
        count.require(schedules, options);
      }
    }
  }
}

// Other slot counts, each with one of the four combinations of rounds and placement. `turn` moves on from root to root
// and from chunk count to chunk count, so that all combinations meet all of both.
void require_in_turn(Count& count, const std::vector<Schedule>& schedules, CheckOptions options,
                     std::initializer_list<uint32_t> all_slots, uint32_t turn) {
  for (uint32_t slots : all_slots) {
    options.slots = slots, options.rounds = turn & 1 ? 3 : 1, options.in_place = turn & 2;
    count.require(schedules, options);
    turn++;
  }
}

}  // namespace

TEST_CASE("ring all-reduce: every size, chunk count, lane and slot count") {
  Count count;
  for (int n : rank_counts()) {
    for (uint32_t chunks = 1; chunks <= kMaxChunks; chunks++) {
      for (uint32_t lanes : {1u, 2u, 4u}) {
        // The fewest slots in all combinations: what runs with them runs with more.
        const std::vector<Schedule> schedules = all_ring_all_reduce(natural_order(n), chunks, lanes);
        require_all(count, schedules, {}, {2});
        require_in_turn(count, schedules, {}, {4, 8}, chunks + lanes / 2);
      }
    }
  }
  std::printf("ring all-reduce: %ld checks\n", count.checks);
}

TEST_CASE("tree all-reduce: every size, chunk count and slot count") {
  Count count;
  for (int n : rank_counts()) {
    for (uint32_t chunks = 1; chunks <= kMaxChunks; chunks++) {
      const std::vector<Schedule> schedules = all_tree_all_reduce(natural_order(n), chunks);
      require_all(count, schedules, {}, {1});
      require_in_turn(count, schedules, {}, {2, 4, 8}, chunks);
    }
  }
  std::printf("tree all-reduce: %ld checks\n", count.checks);
}

TEST_CASE("ring broadcast: every size, root, chunk count, lane and slot count") {
  Count count;
  for (int n : rank_counts()) {
    for (uint32_t chunks = 1; chunks <= kMaxChunks; chunks++) {
      for (int root = 0; root < n; root++) {
        const uint32_t turn = static_cast<uint32_t>(root) + chunks;
        const uint32_t lanes = 1u << turn % 3;
        const CheckOptions options{.goal = Goal::kBroadcast, .root = root};
        require_in_turn(count, all_ring_broadcast(natural_order(n), root, chunks, lanes), options, {1, 2, 4, 8}, turn);
      }
    }
  }
  std::printf("ring broadcast: %ld checks\n", count.checks);
}

TEST_CASE("tree broadcast: every size, root, chunk count and slot count") {
  Count count;
  for (int n : rank_counts()) {
    for (uint32_t chunks = 1; chunks <= kMaxChunks; chunks++) {
      for (int root = 0; root < n; root++) {
        const CheckOptions options{.goal = Goal::kBroadcast, .root = root};
        require_in_turn(count, all_tree_broadcast(natural_order(n), root, chunks), options, {1, 2, 4, 8},
                        static_cast<uint32_t>(root) + chunks);
      }
    }
  }
  std::printf("tree broadcast: %ld checks\n", count.checks);
}

TEST_CASE("permuted orders: rings and trees do not care who stands where") {
  Count count;
  for (int n : rank_counts()) {
    for (uint32_t seed = 1; seed <= 3; seed++) {
      const std::vector<int> order = shuffled_order(n, seed * 1000 + static_cast<uint32_t>(n));
      const uint32_t chunks = order.size() > 1 ? static_cast<uint32_t>(2 * n + order[0]) : 1;
      const CheckOptions broadcast{.goal = Goal::kBroadcast, .root = order[order.size() / 2]};
      require_all(count, all_ring_all_reduce(order, chunks, 2), {}, {2, 4, 8});
      require_all(count, all_tree_all_reduce(order, chunks), {}, {1, 2, 4, 8});
      require_all(count, all_ring_broadcast(order, broadcast.root, chunks, 2), broadcast, {1, 2, 4, 8});
      require_all(count, all_tree_broadcast(order, broadcast.root, chunks), broadcast, {1, 2, 4, 8});
    }
  }
  std::printf("permuted orders: %ld checks\n", count.checks);
}

TEST_CASE("large groups") {
  Count count;
  const int n = kSanitized ? 65 : 257;
  const std::vector<int> order = shuffled_order(n, 7);
  const CheckOptions broadcast{.goal = Goal::kBroadcast, .root = 5};
  for (uint32_t chunks : {1u, 2u, 300u}) {
    require_all(count, all_ring_all_reduce(order, chunks, 1), {}, {2});
    require_all(count, all_ring_broadcast(order, broadcast.root, chunks, 1), broadcast, {1});
    require_all(count, all_tree_broadcast(order, broadcast.root, chunks), broadcast, {1});
  }
  require_all(count, all_tree_all_reduce(order, 6), {}, {1});
}
