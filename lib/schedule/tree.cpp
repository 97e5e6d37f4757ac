#include <algorithm>
#include <cassert>

#include "schedule/double_tree.h"
#include "schedule/schedule.h"

namespace tutti {
namespace {

constexpr int kTrees = 2;

// The node of `rank` in one tree over `order`, in ranks instead of positions.
TreeNode node_of(std::span<const int> order, int rank, int tree) {
  const auto at = std::find(order.begin(), order.end(), rank);
  assert(at != order.end());
  TreeNode node = double_tree_node(tree, static_cast<int>(order.size()), static_cast<int>(at - order.begin()));
  for (int* peer : {&node.parent, &node.child[0], &node.child[1]}) {
    if (*peer >= 0) *peer = order[static_cast<size_t>(*peer)];
  }
  return node;
}

// child0 --\                          The sum is always (child0 + own) + child1. With two children out[c] holds the
// child1 ---+--> parent               first partial sum. Nobody else can want out[c] then: the final value, which the
//                                     down lane stores there, contains this rank's part and so comes only after the
// top: the sum turns round here       partial was sent; in place, in[c] has been read by the step that overwrites it;
// and goes down to the children.      and another round works on other chunks of the buffer.
void add_up(std::vector<Step>& steps, const TreeNode& node, uint32_t chunk) {
  const Slice in{Buffer::kInput, chunk}, out{Buffer::kOutput, chunk};
  const bool two_children = node.child[1] >= 0;
  const bool is_top = node.parent < 0;
  if (two_children) steps.push_back({.recv = node.child[0], .chunk = chunk, .local = in, .store = out});
  Step last{.recv = node.child[two_children], .chunk = chunk, .local = two_children ? out : in};
  last.send = is_top ? node.child[0] : node.parent;
  if (is_top) last.store = out;
  last.completes = is_top;
  steps.push_back(last);
  if (is_top && two_children) steps.push_back({.send = node.child[1], .chunk = chunk, .local = out});
}

void add_down(std::vector<Step>& steps, const TreeNode& node, uint32_t chunk) {
  if (node.parent < 0) return;
  const Slice out{Buffer::kOutput, chunk};
  steps.push_back({.recv = node.parent, .send = node.child[0], .chunk = chunk, .store = out});
  if (node.child[1] >= 0) steps.push_back({.send = node.child[1], .chunk = chunk, .local = out});
}

void add_lane(Schedule& schedule, int tree, std::vector<Step> steps) {
  if (!steps.empty()) schedule.lanes.push_back({static_cast<uint32_t>(tree), std::move(steps)});
}

Schedule empty_schedule(std::span<const int> order, int rank, uint32_t n_chunks) {
  return {.rank = rank, .n_ranks = static_cast<int>(order.size()), .n_chunks = n_chunks};
}

}  // namespace

// One channel per tree serves both lanes: up sends to the parent and receives from children, down the other way round,
// so no (peer, direction) is in both. The top's up lane does both and has no down lane beside it.
Schedule tree_all_reduce(std::span<const int> order, int rank, uint32_t n_chunks) {
  Schedule schedule = empty_schedule(order, rank, n_chunks);
  for (int tree = 0; tree < kTrees; tree++) {
    const TreeNode node = node_of(order, rank, tree);
    std::vector<Step> up, down;
    for (uint32_t chunk = static_cast<uint32_t>(tree); chunk < n_chunks; chunk += kTrees) {
      add_up(up, node, chunk);
      add_down(down, node, chunk);
    }
    add_lane(schedule, tree, std::move(up));
    add_lane(schedule, tree, std::move(down));
  }
  return schedule;
}

//              root            The double tree spans all ranks but the root, which feeds the tops of both in turn.
//   even chunks /  \ odd       Thus the root sends everything once, and everybody else at most once too: each is
//            top 0  top 1      an inner node (two sends) for half of the chunks only.
//             / \    / \       .
Schedule tree_broadcast(std::span<const int> order, int rank, int root, uint32_t n_chunks) {
  Schedule schedule = empty_schedule(order, rank, n_chunks);
  schedule.input_blocks = rank == root;
  std::vector<int> others;
  std::copy_if(order.begin(), order.end(), std::back_inserter(others), [&](int other) { return other != root; });
  for (int tree = 0; tree < kTrees; tree++) {
    const int n_others = static_cast<int>(others.size());
    const int top = others.empty() ? -1 : others[static_cast<size_t>(double_tree_top(tree, n_others))];
    TreeNode node;
    if (rank != root) node = node_of(others, rank, tree);
    if (rank == top) node.parent = root;
    std::vector<Step> steps;
    for (uint32_t chunk = static_cast<uint32_t>(tree); chunk < n_chunks; chunk += kTrees) {
      const Slice in{Buffer::kInput, chunk}, out{Buffer::kOutput, chunk};
      if (rank == root) steps.push_back({.send = top, .chunk = chunk, .local = in, .store = out});
      add_down(steps, node, chunk);
    }
    add_lane(schedule, tree, std::move(steps));
  }
  return schedule;
}

}  // namespace tutti
