#include <algorithm>
#include <cassert>

#include "schedule/algorithms.h"
#include "schedule/double_tree.h"

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

// child0 --\                          The sum is always (child0 + own) + child1. With two children `partial` holds the
// child1 ---+--> parent               first sum.
//
// top: the sum turns round here and goes down to the children.
void add_up(std::vector<Step>& steps, const TreeNode& node, uint32_t chunk, Slice partial) {
  const Slice in{Buffer::kInput, chunk}, out{Buffer::kOutput, chunk};
  const bool two_children = node.child[1] >= 0;
  const bool is_top = node.parent < 0;
  if (two_children) steps.push_back({.recv = node.child[0], .chunk = chunk, .local = in, .store = partial});
  Step last{.recv = node.child[two_children], .chunk = chunk, .local = two_children ? partial : in};
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
//
// The partial sum stands in out[c]. Nobody else can want that then: the final value, which the down lane stores there,
// contains this rank's part and so comes only after the partial was sent; in place, in[c] has been read by the step
// that overwrites it; and another round works on other chunks of the buffer.
Schedule tree_all_reduce(std::span<const int> order, int rank, uint32_t n_chunks) {
  Schedule schedule = empty_schedule(order, rank, n_chunks);
  for (int tree = 0; tree < kTrees; tree++) {
    const TreeNode node = node_of(order, rank, tree);
    std::vector<Step> up, down;
    for (uint32_t chunk = static_cast<uint32_t>(tree); chunk < n_chunks; chunk += kTrees) {
      add_up(up, node, chunk, {Buffer::kOutput, chunk});
      add_down(down, node, chunk);
    }
    add_lane(schedule, tree, std::move(up));
    add_lane(schedule, tree, std::move(down));
  }
  return schedule;
}

namespace {

//              root            The double tree spans all ranks but the root, which feeds the tops of both in turn.
//   even chunks /  \ odd       Thus the root sends everything once, and everybody else at most once too: each is
//            top 0  top 1      an inner node (two sends) for half of the chunks only. A reduce is the same upside
//             / \    / \       down.
struct Rooted {
  TreeNode node;  // of a rank that is not the root
  int top = -1;   // the root's only child
};

Rooted rooted_node(std::span<const int> order, int rank, int root, int tree) {
  std::vector<int> others;
  std::copy_if(order.begin(), order.end(), std::back_inserter(others), [&](int other) { return other != root; });
  Rooted rooted;
  if (others.empty()) return rooted;
  rooted.top = others[static_cast<size_t>(double_tree_top(tree, static_cast<int>(others.size())))];
  if (rank != root) rooted.node = node_of(others, rank, tree);
  if (rank == rooted.top) rooted.node.parent = root;
  return rooted;
}

Effort trees_cost(const Bill& b) {
  const double half = b.messages_for(b.bytes / 2, b.lanes), filling = b.pipe_filling(2);  // each of the two trees
  const double pieces = std::max(1.0, b.bytes / (2 * b.slot_bytes * b.lanes * b.lanes));
  // Up and down, and each rank waits for both of its trees.
  Effort e = b.hops(4 * b.depth * pieces, 4 * b.host_depth * pieces);
  b.over_distances(e, {8 * half, 8 * b.others() * half},
                   b.passed_on({2.5 * b.bytes + filling, 2.5 * b.others() * b.bytes + b.n * filling}));
  e.summed = {2 * b.bytes, 2 * b.others() * b.bytes};
  e.out = 2 * b.bytes;
  return e;
}

Effort rooted_cost(const Bill& b) {
  const double half = b.messages_for(b.bytes / 2, b.lanes);
  const Work moved{b.sides() * b.bytes + b.pipe_filling(1), 2 * b.others() * b.bytes};
  // Each rank waits for both of its trees.
  Effort e =
      b.hops(kPassedOn * 2 * b.depth + b.bytes / (2 * b.slot_bytes * b.lanes * b.lanes), kPassedOn * 2 * b.host_depth);
  b.over_distances(e, {4 * half, 4 * b.others() * half}, b.handed_down(moved));
  if (b.sums) e.summed = moved;
  e.out = b.bytes * (b.here > 1 ? std::max(1.3, 1.3 * b.here * b.out_share()) : 1) +
          std::max(0, b.host_depth - 1) * b.piece_behind(b.bytes, 2 * b.lanes);
  return e;
}

Effort bruck_cost(const Bill& b) {
  Effort e = b.hops(b.depth + b.others() * b.bytes / b.slot_bytes / 2, b.depth);
  b.over_distances(e, b.each(2 * b.others() * b.messages_for(b.bytes, 1)),
                   b.passed_on(b.each(2 * b.others() * b.bytes)));
  if (b.sums) e.summed = b.each(2 * b.others() * b.bytes);
  e.out = b.here * b.elsewhere() * b.bytes;
  return e;
}

}  // namespace

Schedule tree_broadcast(std::span<const int> order, int rank, int root, uint32_t n_chunks) {
  Schedule schedule = empty_schedule(order, rank, n_chunks);
  schedule.input_blocks = rank == root;
  for (int tree = 0; tree < kTrees; tree++) {
    const Rooted rooted = rooted_node(order, rank, root, tree);
    std::vector<Step> steps;
    for (uint32_t chunk = static_cast<uint32_t>(tree); chunk < n_chunks; chunk += kTrees) {
      const Slice in{Buffer::kInput, chunk}, out{Buffer::kOutput, chunk};
      if (rank == root) steps.push_back({.send = rooted.top, .chunk = chunk, .local = in, .store = out});
      add_down(steps, rooted.node, chunk);
    }
    add_lane(schedule, tree, std::move(steps));
  }
  return schedule;
}

// Only the root has an output: partial sums stand in scratch. One chunk of it is enough, because only an inner node has
// partial sums, and that in one tree alone.
Schedule tree_reduce(std::span<const int> order, int rank, int root, uint32_t n_chunks) {
  Schedule schedule = empty_schedule(order, rank, n_chunks);
  schedule.output_blocks = rank == root;
  for (int tree = 0; tree < kTrees; tree++) {
    const Rooted rooted = rooted_node(order, rank, root, tree);
    std::vector<Step> steps;
    for (uint32_t chunk = static_cast<uint32_t>(tree); chunk < n_chunks; chunk += kTrees) {
      const Slice in{Buffer::kInput, chunk}, out{Buffer::kOutput, chunk};
      if (rank == root)
        steps.push_back({.recv = rooted.top, .chunk = chunk, .local = in, .store = out, .completes = true});
      else
        add_up(steps, rooted.node, chunk, {Buffer::kScratch, 0});
    }
    if (rooted.node.child[1] >= 0 && !steps.empty()) schedule.n_scratch = 1;
    add_lane(schedule, tree, std::move(steps));
  }
  return schedule;
}

extern const Algorithm kTree = {
    .name = "tree",
    .all_reduce = {[](Ranks r) { return tree_all_reduce(r.order, r.rank, 2 * r.lanes); }, trees_cost, 2},
    .broadcast = {[](Ranks r) { return tree_broadcast(r.order, r.rank, r.root, 2 * r.lanes); }, rooted_cost, 2},
    .reduce = {[](Ranks r) { return tree_reduce(r.order, r.rank, r.root, 2 * r.lanes); }, rooted_cost, 2},
    .all_gather = {[](Ranks r) { return bruck_all_gather(r.order, r.rank, 1, kWindow); }, bruck_cost, 1},
    .reduce_scatter = {[](Ranks r) { return bruck_reduce_scatter(r.order, r.rank, 1, kWindow); }, bruck_cost, 1},
};

}  // namespace tutti
