// What the schedules look like, beyond being right: tree shapes, lanes and channels, traffic, and how many hops the
// slowest message chain has.
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

TEST_CASE("lanes: as many as asked for and useful, on their channels") {
  const std::vector<int> ring = natural_order(4);
  const auto channels = [](const Schedule& schedule) {
    std::vector<uint32_t> all;
    for (const Lane& lane : schedule.lanes) all.push_back(lane.channel);
    return all;
  };
  using Channels = std::vector<uint32_t>;
  CHECK(channels(ring_all_reduce(ring, 2, 32, 4)) == Channels{0, 1, 2, 3});
  CHECK(channels(ring_all_reduce(ring, 2, 9, 4)) == Channels{0, 1, 2});
  CHECK(channels(ring_all_reduce(ring, 2, 1, 4)) == Channels{0});
  CHECK(channels(ring_broadcast(ring, 2, 0, 3, 2)) == Channels{0, 1});
  CHECK(channels(ring_broadcast(ring, 2, 0, 1, 2)) == Channels{0});
  CHECK(channels(tree_all_reduce(ring, 1, 1)) == Channels{0, 0});  // an inner node: up and down
  CHECK(channels(tree_all_reduce(ring, 3, 2)) == Channels{0, 1, 1});
  CHECK(channels(tree_broadcast(ring, 1, 0, 2)) == Channels{0, 1});
  CHECK(channels(tree_broadcast(ring, 0, 0, 1)) == Channels{0});
}

TEST_CASE("lanes: no schedule has an empty one or more than the buffer's chunks") {
  for (int n : {1, 2, 3, 5, 8}) {
    for (uint32_t chunks : {1u, 2u, 7u}) {
      for (const auto& schedules :
           {all_ring_all_reduce(natural_order(n), chunks, 4), all_ring_broadcast(natural_order(n), n - 1, chunks, 4),
            all_tree_all_reduce(natural_order(n), chunks), all_tree_broadcast(natural_order(n), n / 2, chunks)}) {
        for (const Schedule& schedule : schedules) {
          CHECK(schedule.n_chunks == chunks);
          for (const Lane& lane : schedule.lanes) CHECK_FALSE(lane.steps.empty());
        }
      }
    }
  }
}

TEST_CASE("ring all-reduce: chunk c is complete at position c mod n") {
  const std::vector<int> ring = shuffled_order(5, 3);
  for (const Schedule& schedule : all_ring_all_reduce(ring, 13, 2)) {
    for (const Lane& lane : schedule.lanes) {
      for (const Step& step : lane.steps) {
        if (step.completes) CHECK(ring[step.store.chunk % 5] == schedule.rank);
      }
    }
  }
}

TEST_CASE("traffic: nothing is sent more often than it must be") {
  for (int n = 1; n <= 33; n++) {
    for (uint32_t chunks : {1u, 2u, 5u, 32u}) {
      const long once = static_cast<long>(n - 1) * chunks;
      CHECK(sends(all_ring_all_reduce(natural_order(n), chunks, 2)) == 2 * once);
      CHECK(sends(all_tree_all_reduce(natural_order(n), chunks)) == 2 * once);
      CHECK(sends(all_ring_broadcast(natural_order(n), n / 2, chunks, 2)) == once);
      CHECK(sends(all_tree_broadcast(natural_order(n), n / 2, chunks)) == once);
    }
    // Even chunk counts load both trees alike: nobody sends more than one child's worth of everything.
    for (const Schedule& schedule : all_tree_broadcast(natural_order(n), 0, 8)) CHECK(sends(schedule) <= 8);
    for (const Schedule& schedule : all_tree_all_reduce(natural_order(n), 8)) CHECK(sends(schedule) <= 16);
  }
}

TEST_CASE("hops: no rank waits needlessly") {
  for (int n = 2; n <= 33; n++) {
    INFO("n=" << n);
    const std::vector<int> order = natural_order(n);
    const uint32_t ranks = static_cast<uint32_t>(n);
    for (int groups : {1, 2, 5}) {
      // One hop of 2n-2 per group is hidden behind the next group's first message.
      const uint32_t chunks = ranks * static_cast<uint32_t>(groups);
      CHECK(hops(all_ring_all_reduce(order, chunks, 1)) == groups * (2 * n - 3) + 1);
      // Side by side lanes overlap entirely.
      CHECK(hops(all_ring_all_reduce(order, chunks, static_cast<uint32_t>(groups))) == 2 * n - 2);
    }
    for (uint32_t chunks : {1u, 2u, 9u}) {
      CHECK(hops(all_ring_broadcast(order, n / 3, chunks, 2)) == n - 1);
      CHECK(hops(all_tree_all_reduce(order, chunks)) <= 2 * floor_log2(n));
      CHECK(hops(all_tree_broadcast(order, n / 3, chunks)) <= 1 + floor_log2(n - 1));
    }
  }
}
