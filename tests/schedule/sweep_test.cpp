// The proof that the planner relies on: for every number of ranks, lanes and slots that it may choose, and for every
// root (some, of more than 17 ranks), every contribution arrives exactly once and nothing deadlocks.
#include <cstdio>

#include "collectives.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

// All of 1 .. 17, and above them, where a proof takes ten times as long, sizes that differ in kind. With a sanitizer,
// which is many times slower, only sizes of that sort.
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

struct Count {
  const char* name;
  long checks = 0;
  explicit Count(const char* of) : name(of) {}
  ~Count() { std::printf("%s: %ld checks\n", name, checks); }

  void require(const std::vector<Schedule>& schedules, const CheckOptions& options) {
    checks++;
    const std::string said = verdict(schedules, options);
    if (said.empty()) {
      SUCCEED();  // avoids composing the message below each time
      return;
    }
    INFO(name << ": n=" << schedules.size() << " chunks=" << schedules[0].n_chunks
              << " lanes=" << schedules[0].lanes.size() << " root=" << options.root << " slots=" << options.slots
              << " rounds=" << options.rounds << " in_place=" << options.in_place);
    REQUIRE(said == "");
  }
};

CheckOptions options_of(const Builder& builder, int root = 0) {
  return {.goal = builder.goal, .root = root, .rank_order = builder.rank_order()};
}

// Requires success with all combinations of rounds and placement.
void require_all(Count& count, const Builder& builder, const std::vector<Schedule>& schedules, CheckOptions options) {
  for (uint32_t rounds : {1u, 3u}) {
    for (bool in_place : {false, true}) {
      options.rounds = rounds, options.in_place = in_place;
      if (builder.in_place() || !in_place) count.require(schedules, options);
    }
  }
}

// With one of the combinations: `turn` advances with the root and the lanes, so that every combination is tried with
// all of both.
void require_one(Count& count, const Builder& builder, const std::vector<Schedule>& schedules, CheckOptions options,
                 uint32_t turn) {
  options.rounds = turn & 1 ? 3 : 1, options.in_place = builder.in_place() && (turn & 2);
  count.require(schedules, options);
}

// With the fewest slots in all combinations: what works with them works with more.
void sweep_without_root(Count& count, const Builder& builder, int n, uint32_t lanes) {
  const std::vector<Schedule> schedules = all_ranks(builder, natural_order(n), 0, lanes);
  CheckOptions options = options_of(builder);
  options.slots = builder.min_slots;
  require_all(count, builder, schedules, options);
  for (const uint32_t more : {1u, 6u}) {
    options.slots = builder.min_slots + more;
    require_one(count, builder, schedules, options, static_cast<uint32_t>(n) + lanes + more);
  }
}

// Above 17 ranks the proofs for all roots would take most of the time.
std::vector<int> roots_of(int n) {
  if (n <= 17) return natural_order(n);
  return {0, 1, n / 2, n - 1};
}

void sweep_roots(Count& count, const Builder& builder, int n, uint32_t lanes) {
  for (const int root : roots_of(n)) {
    const std::vector<Schedule> schedules = all_ranks(builder, natural_order(n), root, lanes);
    CheckOptions options = options_of(builder, root);
    options.slots = builder.min_slots;
    require_all(count, builder, schedules, options);
    for (const uint32_t more : {1u, 7u}) {
      options.slots = builder.min_slots + more;
      require_one(count, builder, schedules, options, static_cast<uint32_t>(root) + lanes + more);
    }
  }
}

}  // namespace

TEST_CASE("every builder: every size, root, lane and slot count") {
  for (const Builder& builder : kBuilders) {
    Count count(builder.name);
    for (const int n : rank_counts()) {
      for (const uint32_t lanes : {1u, 2u, 3u, 4u}) {
        if (lanes > 1 && !builder.has_lanes()) continue;
        builder.has_root() ? sweep_roots(count, builder, n, lanes) : sweep_without_root(count, builder, n, lanes);
      }
    }
  }
}

TEST_CASE("every builder: permuted orders, rings and trees do not care who stands where") {
  Count count("permuted orders");
  for (const Builder& builder : kBuilders) {
    for (const int n : rank_counts()) {
      for (uint32_t seed = 1; seed <= 4; seed++) {
        const std::vector<int> order = shuffled_order(n, seed * 1000 + static_cast<uint32_t>(n));
        const int root = order[order.size() / 2];
        CheckOptions options = options_of(builder, root);
        options.slots = builder.min_slots;
        require_all(count, builder, all_ranks(builder, order, root, 1 + seed % 2), options);
      }
    }
  }
}

TEST_CASE("every builder: large groups") {
  const int n = kSanitized ? 65 : 257;
  Count count("large groups");
  for (const Builder& builder : kBuilders) {
    CheckOptions options = options_of(builder, 5);
    options.slots = builder.min_slots;
    for (const uint32_t lanes : {1u, 2u})
      if (lanes == 1 || builder.has_lanes())
        require_one(count, builder, all_ranks(builder, shuffled_order(n, 7), 5, lanes), options, 3 - lanes);
  }
}
