// The proof that the planner leans on: for every number of ranks, of chunks and of slots that it may pick, and for
// every root, every contribution arrives exactly once and nothing deadlocks.
#include <cstdio>
#include <set>

#include "collectives.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

// All of 1 .. 17, and of those above, where a proof takes ten times as long, the sizes that differ in kind. With a
// sanitizer, which is many times slower, only such sizes.
std::vector<int> rank_counts() {
  if (!kSanitized) {
    std::vector<int> counts = natural_order(17);
    for (int& n : counts) n++;
    counts.insert(counts.end(), {23, 24, 31, 32, 33});
    return counts;
  }
  std::printf("thinned out because of the sanitizer: a few numbers of ranks only\n");
  return {1, 2, 3, 5, 8, 13};
}

// Small ones, and those around whole groups of n chunks. A gathered block has no groups, and n blocks of it many steps.
std::set<uint32_t> chunk_counts(Goal goal, int n) {
  if (goal == Goal::kBarrier) return {1};
  if (goal != Goal::kAllReduce && goal != Goal::kBroadcast && goal != Goal::kReduce) return {1, 2, 3};
  const auto ranks = static_cast<uint32_t>(n);
  return {1, 2, 3, 4, 7, std::max(ranks - 1, 1u), ranks, ranks + 1, 2 * ranks, 2 * ranks + 3};
}

struct Count {
  const char* name;
  long checks = 0;
  explicit Count(const char* of) : name(of) {}
  ~Count() { std::printf("%s: %ld checks\n", name, checks); }

  void require(const std::vector<Schedule>& schedules, const CheckOptions& options) {
    checks++;
    const std::string said = verdict(schedules, options);
    if (said.empty()) {
      SUCCEED();  // without composing the message below each time
      return;
    }
    INFO(name << ": n=" << schedules.size() << " chunks=" << schedules[0].n_chunks
              << " lanes=" << schedules[0].lanes.size() << " root=" << options.root << " slots=" << options.slots
              << " rounds=" << options.rounds << " in_place=" << options.in_place);
    REQUIRE(said == "");
  }
};

CheckOptions options_of(const Builder& builder, int root = 0) {
  return {.goal = builder.goal, .root = root, .rank_order = builder.rank_order};
}

// All combinations of rounds and placement.
void require_all(Count& count, const Builder& builder, const std::vector<Schedule>& schedules, CheckOptions options) {
  for (uint32_t rounds : {1u, 3u}) {
    for (bool in_place : {false, true}) {
      options.rounds = rounds, options.in_place = in_place;
      if (builder.in_place || !in_place) count.require(schedules, options);
    }
  }
}

// One of the combinations. `turn` moves on from root to root and from chunk count to chunk count, so that all
// combinations meet all of both.
void require_one(Count& count, const Builder& builder, const std::vector<Schedule>& schedules, CheckOptions options,
                 uint32_t turn) {
  options.rounds = turn & 1 ? 3 : 1, options.in_place = builder.in_place && (turn & 2);
  count.require(schedules, options);
}

// The fewest slots in all combinations: what runs with them runs with more.
void sweep_without_root(Count& count, const Builder& builder, int n, uint32_t chunks) {
  for (uint32_t width : {1u, 2u, 4u}) {
    if (width > 1 && !builder.has_width) continue;
    const std::vector<Schedule> schedules = all_ranks(builder, natural_order(n), 0, chunks, width);
    CheckOptions options = options_of(builder);
    options.slots = min_slots(builder, width);
    require_all(count, builder, schedules, options);
    for (uint32_t more : {1u, 6u}) {
      options.slots = min_slots(builder, width) + more;
      require_one(count, builder, schedules, options, chunks + more);
    }
  }
}

void sweep_roots(Count& count, const Builder& builder, int n, uint32_t chunks) {
  for (int root = 0; root < n; root++) {
    const uint32_t turn = static_cast<uint32_t>(root) + chunks;
    const uint32_t width = builder.has_width ? 1u << turn % 3 : 1;
    const std::vector<Schedule> schedules = all_ranks(builder, natural_order(n), root, chunks, width);
    CheckOptions options = options_of(builder, root);
    for (uint32_t more : {0u, 1u, 7u}) {
      options.slots = min_slots(builder, width) + more;
      require_one(count, builder, schedules, options, turn + more);
    }
  }
}

}  // namespace

TEST_CASE("every builder: every size, root, chunk, lane and slot count") {
  for (const Builder& builder : kBuilders) {
    Count count(builder.name);
    for (int n : rank_counts()) {
      for (uint32_t chunks : chunk_counts(builder.goal, n)) {
        builder.has_root ? sweep_roots(count, builder, n, chunks) : sweep_without_root(count, builder, n, chunks);
      }
    }
  }
}

TEST_CASE("every builder: permuted orders, rings and trees do not care who stands where") {
  Count count("permuted orders");
  for (const Builder& builder : kBuilders) {
    for (int n : rank_counts()) {
      for (uint32_t seed = 1; seed <= 2; seed++) {
        const std::vector<int> order = shuffled_order(n, seed * 1000 + static_cast<uint32_t>(n));
        const int root = order[order.size() / 2];
        const auto chunks = builder.goal == Goal::kBarrier ? 1 : static_cast<uint32_t>(1 + order[0] % 7);
        CheckOptions options = options_of(builder, root);
        options.slots = min_slots(builder, 2);
        require_all(count, builder, all_ranks(builder, order, root, chunks, 2), options);
      }
    }
  }
}

// What the planner takes for all-reduce and broadcast is proved at every chunk count up to three groups of 17.
TEST_CASE("rings and trees of all-reduce and broadcast: every size, root and chunk count", "[planner]") {
  for (const Builder& builder : kBuilders) {
    const std::string name = builder.name;
    if (!name.starts_with("ring") && !name.starts_with("tree")) continue;
    if (builder.goal != Goal::kAllReduce && builder.goal != Goal::kBroadcast) continue;
    Count count(builder.name);
    for (int n = 1; n <= 17; n++) {
      for (uint32_t chunks = 1; chunks <= 51; chunks++) {
        builder.has_root ? sweep_roots(count, builder, n, chunks) : sweep_without_root(count, builder, n, chunks);
      }
    }
  }
}

// A sanitizer is shown every seventh: they differ in rounds and place, and run the same code.
TEST_CASE("all-reduce: every chunk count") {
  for (const Builder& builder : kBuilders) {
    if (builder.goal != Goal::kAllReduce) continue;
    Count count(builder.name);
    for (int n : {2, 3, 6, 8, 13}) {
      for (uint32_t chunks = 1; chunks <= 64; chunks += kSanitized ? 7 : 1) {
        CheckOptions options = options_of(builder);
        options.slots = min_slots(builder, 2);
        require_one(count, builder, all_ranks(builder, natural_order(n), 0, chunks, 2), options, chunks);
      }
    }
  }
}

TEST_CASE("every builder: large groups") {
  const int n = kSanitized ? 65 : 257;
  Count count("large groups");
  for (const Builder& builder : kBuilders) {
    CheckOptions options = options_of(builder, 5);
    options.slots = min_slots(builder, 4);
    for (uint32_t chunks : {1u, 2u}) {
      if (builder.goal == Goal::kBarrier && chunks > 1) continue;
      require_one(count, builder, all_ranks(builder, shuffled_order(n, 7), 5, chunks, 4), options, 3 - chunks);
    }
  }
}
