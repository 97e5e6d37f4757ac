// The shape of schedules, beyond their correctness: trees, lanes and channels, traffic, and the number of hops in the
// slowest chain of messages.
#include <bit>

#include "schedule/double_tree.h"
#include "testing.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

bool is_inner(const TreeNode& node) {
  return node.child[0] >= 0;
}

// Steps from `position` up to the top; n or more if it never gets there.
int depth_of(int tree, int n, int position) {
  int depth = 0;
  while (depth < n) {
    position = double_tree_node(tree, n, position).parent;
    if (position < 0) return depth;
    depth++;
  }
  return depth;
}

}  // namespace

TEST_CASE("double tree: both trees span all positions, parents and children agree") {
  for (int n = 1; n <= 1100; n++) {
    for (int tree : {0, 1}) {
      int n_tops = 0, n_children = 0;
      for (int position = 0; position < n; position++) {
        const TreeNode node = double_tree_node(tree, n, position);
        n_tops += node.parent < 0;
        INFO("n=" << n << " tree=" << tree << " position=" << position);
        if (node.parent < 0) REQUIRE(position == double_tree_top(tree, n));
        for (int child : node.child) {
          if (child < 0) continue;
          n_children++;
          REQUIRE(child < n);
          REQUIRE(double_tree_node(tree, n, child).parent == position);
        }
        REQUIRE((node.child[1] < 0 || node.child[0] >= 0));
        REQUIRE((node.child[0] < 0 || node.child[0] != node.child[1]));
      }
      REQUIRE(n_tops == 1);
      REQUIRE(n_children == n - 1);
    }
  }
}

TEST_CASE("double tree: logarithmic depth, nobody is an inner node in both trees") {
  for (int n = 1; n <= 1100; n++) {
    for (int position = 0; position < n; position++) {
      INFO("n=" << n << " position=" << position);
      REQUIRE(depth_of(0, n, position) <= floor_log2(n));
      REQUIRE(depth_of(1, n, position) <= floor_log2(n));
      REQUIRE_FALSE((is_inner(double_tree_node(0, n, position)) && is_inner(double_tree_node(1, n, position))));
    }
  }
}

TEST_CASE("double tree: as drawn for seven and eight") {
  const auto parents = [](int tree, int n) {
    std::vector<int> all;
    for (int position = 0; position < n; position++) all.push_back(double_tree_node(tree, n, position).parent);
    return all;
  };
  CHECK(parents(0, 7) == std::vector<int>{1, 3, 1, -1, 5, 3, 5});
  CHECK(parents(1, 7) == std::vector<int>{6, 2, 4, 2, -1, 6, 4});
  CHECK(parents(0, 8) == std::vector<int>{1, 3, 1, 7, 5, 3, 5, -1});
  CHECK(parents(1, 8) == std::vector<int>{-1, 2, 4, 2, 0, 6, 4, 6});
}

TEST_CASE("lanes: as many as asked for, on their channels") {
  const auto channels = [](const Schedule& schedule) {
    std::vector<uint32_t> all;
    for (const Lane& lane : schedule.lanes) all.push_back(lane.channel);
    return all;
  };
  using Channels = std::vector<uint32_t>;
  const std::vector<int> four = natural_order(4);
  CHECK(channels(all_ring_all_reduce(four, 4)[2]) == Channels{0, 1, 2, 3});
  CHECK(channels(all_ring_all_reduce(four, 1)[2]) == Channels{0});
  CHECK(channels(all_of("ring", Goal::kAllGather, four, 2)[2]) == Channels{0, 1});
  CHECK(channels(all_of("ring", Goal::kBroadcast, four, 2)[2]) == Channels{0});
  CHECK(channels(all_of("direct", Goal::kAllReduce, four, 3)[2]) == Channels{0, 1, 2});
  const auto trees = all_of("tree", Goal::kAllReduce, four);
  CHECK(channels(trees[1]) == Channels{0, 0, 1, 1});  // up and down
  CHECK(channels(trees[3]) == Channels{0, 1, 1});     // the top of the first tree
  CHECK(channels(all_of("tree", Goal::kBroadcast, four)[1]) == Channels{0, 1});
}

TEST_CASE("ring all-reduce: chunk c is complete at position c mod n") {
  const std::vector<int> ring = shuffled_order(5, 3);
  for (const Schedule& schedule : all_ring_all_reduce(ring, 2)) {
    for (const Lane& lane : schedule.lanes) {
      for (const Step& step : lane.steps) {
        if (step.completes) CHECK(ring[step.store.chunk % 5] == schedule.rank);
      }
    }
  }
}

TEST_CASE("traffic: both trees are loaded alike") {
  for (int n = 1; n <= 33; n++) {
    // No rank sends more than one child's worth of everything.
    for (const Schedule& schedule : all_of("tree", Goal::kBroadcast, natural_order(n), 4)) CHECK(sends(schedule) <= 8);
    for (const Schedule& schedule : all_of("tree", Goal::kAllReduce, natural_order(n), 4)) CHECK(sends(schedule) <= 16);
  }
}

TEST_CASE("hops: no rank waits needlessly") {
  for (int n = 2; n <= 33; n++) {
    INFO("n=" << n);
    const std::vector<int> order = natural_order(n);
    for (const uint32_t lanes : {1u, 2u, 5u}) {
      // Parallel lanes overlap entirely.
      CHECK(hops(all_ring_all_reduce(order, lanes)) == 2 * n - 2);
      CHECK(hops(all_of("tree", Goal::kAllReduce, order, lanes)) <= 2 * floor_log2(n));
      CHECK(hops(all_of("tree", Goal::kBroadcast, order, lanes, n / 3)) <= 1 + floor_log2(n - 1));
    }
  }
}

// Four hosts of four ranks: each host's chunks go round it one after the other.
TEST_CASE("hops: where one chunk after the other goes round, one hop of each is hidden behind the next one's first") {
  const std::vector<int> order = natural_order(16);
  const auto hosts = std::vector<std::vector<int>>{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}};
  const auto schedules = for_all_ranks(16, [&](int rank) {
    return schedule_of("hierarchical", Goal::kAllReduce, {order, hosts, {}, {}, rank});
  });
  // Four rounds of three hops there and back, of which two count; and a ring of the hosts in between.
  CHECK(hops(schedules) == (4 * 2 + 1) + 2 * 3 + (4 * 2 + 1));
}
