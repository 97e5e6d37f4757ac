// tree: a double binary tree (see double_tree.h). Even chunks go through the first tree, on channel 0, odd ones through
// the second, on channel 1. Reduction up and broadcast down are separate lanes, so one slot is enough.
#include <algorithm>

#include "schedule/algorithms.h"
#include "schedule/double_tree.h"

namespace tutti {
namespace {

constexpr uint32_t kTrees = 2;
// Times as many chunks where there are slow hosts, so that results are under way to them while they still send.
constexpr uint32_t kSlowChunks = 4;

using SlowHosts = std::span<const std::vector<int>>;

bool contains(std::span<const int> ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Slow hosts hang below leaves of both trees, so that they forward no data of other hosts:
//
//         1            inner: 0 1 2, slow: 3 4 on one host, 5 on another
//       /   \          .
//      0     2
//      |     |
//      3     5
//      |
//      4
struct Members {
  std::span<const int> inner;  // `order` itself if no rank is left out
  std::vector<std::vector<int>> slow;

  // All ranks but the root; -1: there is none.
  Members(std::span<const int> order, SlowHosts hosts, int root) : inner(order) {
    if (hosts.empty() && root < 0) return;
    const auto is_slow = [&](int rank) {
      return std::any_of(hosts.begin(), hosts.end(), [&](const auto& host) { return contains(host, rank); });
    };
    for (const int rank : order)
      if (rank != root && !is_slow(rank)) kept_.push_back(rank);
    inner = kept_;
    for (const std::vector<int>& host : hosts) {
      slow.push_back(host);
      std::erase(slow.back(), root);
    }
    std::erase_if(slow, [](const auto& host) { return host.empty(); });
    // A leaf has room for two slow hosts.
    if (slow.size() <= inner.size()) return;
    kept_.assign(order.begin(), order.end());
    std::erase(kept_, root);
    inner = kept_;
    slow.clear();
  }
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  // The rank's node, with peers as ranks instead of positions.
  TreeNode node(int rank, int tree) const {
    if (!slow.empty() && !contains(inner, rank)) return slow_node(rank, tree);
    TreeNode node = double_tree_node(tree, static_cast<int>(inner.size()), place_of(inner, rank));
    for (int* peer : {&node.parent, &node.child[0], &node.child[1]})
      if (*peer >= 0) *peer = inner[static_cast<size_t>(*peer)];
    if (slow.empty() || node.child[0] >= 0) return node;
    const std::vector<int> all = leaves(tree);
    const size_t leaf = static_cast<size_t>(std::find(all.begin(), all.end(), rank) - all.begin());
    for (size_t i = 0; i < 2 && leaf + i * all.size() < slow.size(); i++)
      node.child[i] = slow[leaf + i * all.size()][0];
    return node;
  }

 private:
  std::vector<int> kept_;

  std::vector<int> leaves(int tree) const {
    const int n = static_cast<int>(inner.size());
    std::vector<int> found;
    for (int position = 0; position < n; position++)
      if (double_tree_node(tree, n, position).child[0] < 0) found.push_back(inner[static_cast<size_t>(position)]);
    return found;
  }
  TreeNode slow_node(int rank, int tree) const {
    const auto host = std::find_if(slow.begin(), slow.end(), [&](const auto& ranks) { return contains(ranks, rank); });
    assert(host != slow.end());
    const std::vector<int> all = leaves(tree);
    const auto at = std::find(host->begin(), host->end(), rank);
    TreeNode node;
    node.parent = at == host->begin() ? all[static_cast<size_t>(host - slow.begin()) % all.size()] : *(at - 1);
    if (at + 1 != host->end()) node.child[0] = *(at + 1);
    return node;
  }
};

// child0 --\                          The sum is always (child0 + own) + child1. With two children `partial` holds the
// child1 ---+--> parent               first sum.
//
// top: the sum turns round here and goes down to the children.
void add_up(Steps& steps, const TreeNode& node, uint32_t chunk, Slice partial) {
  const Slice in = input_of(chunk), out = output_of(chunk);
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

void add_down(Steps& steps, const TreeNode& node, uint32_t chunk) {
  if (node.parent < 0) return;
  const Slice out = output_of(chunk);
  steps.push_back({.recv = node.parent, .send = node.child[0], .chunk = chunk, .store = out});
  if (node.child[1] >= 0) steps.push_back({.send = node.child[1], .chunk = chunk, .local = out});
}

// One channel per tree serves both lanes: up sends to the parent and receives from children, down the other way round,
// so no (peer, direction) is in both. The top's up lane does both and has no down lane beside it.
//
// The partial sum is kept in out[c], which nothing else needs at that time: the final value, which the down lane stores
// there, contains this rank's part and so comes only after the partial sum was sent; in place, in[c] has been read by
// the step that overwrites it; and another round works on other chunks of the buffer.
Schedule tree_all_reduce(const Ranks& r) {
  const uint32_t n_chunks = kTrees * r.lanes * (r.slow.empty() ? 1 : kSlowChunks);
  Schedule schedule{.rank = r.rank, .n_ranks = r.n(), .n_chunks = n_chunks};
  const Members members(r.order, r.slow, -1);
  for (uint32_t tree = 0; tree < kTrees; tree++) {
    const TreeNode node = members.node(r.rank, static_cast<int>(tree));
    Steps up, down;
    for (uint32_t chunk = tree; chunk < n_chunks; chunk += kTrees) {
      add_up(up, node, chunk, output_of(chunk));
      add_down(down, node, chunk);
    }
    schedule.add_lane(tree, std::move(up));
    schedule.add_lane(tree, std::move(down));
  }
  return schedule;
}

//              root            The double tree spans all ranks but the root, which feeds the tops of both in turn.
//   even chunks /  \ odd       Thus the root sends everything once, and everybody else at most once too: each is
//            top 0  top 1      an inner node (two sends) for half of the chunks only. A reduce is the same upside
//             / \    / \       down. Only its root has an output, so partial sums are in scratch, in one chunk for
//                              each tree.
Schedule rooted_tree(const Ranks& r, bool reduces) {
  Schedule schedule{.rank = r.rank, .n_ranks = r.n(), .n_chunks = kTrees * r.lanes};
  const Members others(r.order, r.slow, r.root);
  const int n_inner = static_cast<int>(others.inner.size());
  for (uint32_t tree = 0; tree < kTrees; tree++) {
    const int which = static_cast<int>(tree);
    const int top = n_inner > 0 ? others.inner[static_cast<size_t>(double_tree_top(which, n_inner))] : -1;
    TreeNode node;
    if (r.rank != r.root) node = others.node(r.rank, which);
    if (r.rank == top) node.parent = r.root;
    Steps steps;
    for (uint32_t chunk = tree; chunk < schedule.n_chunks; chunk += kTrees) {
      if (r.rank == r.root)
        steps.push_back({.recv = reduces ? top : -1,
                         .send = reduces ? -1 : top,
                         .chunk = chunk,
                         .local = input_of(chunk),
                         .store = output_of(chunk),
                         .completes = reduces});
      else if (reduces)
        add_up(steps, node, chunk, {Buffer::kScratch, schedule.n_scratch});
      else
        add_down(steps, node, chunk);
    }
    if (reduces && node.child[1] >= 0) schedule.n_scratch++;
    schedule.add_lane(tree, std::move(steps));
  }
  return schedule;
}

Schedule tree_broadcast(const Ranks& r) {
  return rooted_tree(r, false);
}

Schedule tree_reduce(const Ranks& r) {
  return rooted_tree(r, true);
}

// How many edges of a tree leave one host.
double ways_out(const Workload& b) {
  return b.here > 1 ? std::max(1.3, 1.3 * b.here * b.out_share()) : 1;
}

// The first chunk has to go all the way before the last rank has anything to do.
double pipe_filling(const Workload& b, double ways) {
  return ways * std::max(0, b.depth() - 1) * std::min(b.slot_bytes, b.bytes / 2);
}

Cost trees_cost(const Workload& b) {
  const double chunks = b.slowness > 1 ? kSlowChunks : 1;
  const double half = b.messages_for(b.bytes / 2, chunks), filling = pipe_filling(b, 2);  // each of the two trees
  const double pieces = std::max(1.0, b.bytes / (2 * b.slot_bytes));
  // Up and down, and each rank waits for both of its trees.
  Cost e = b.hops(4 * b.depth() * pieces, 4 * b.host_depth() * pieces);
  b.over_distances(e, {8 * half, 8 * b.others() * half},
                   b.passed_on({2.5 * b.bytes + filling, 2.5 * b.others() * b.bytes + b.n * filling}));
  e.summed = {2 * b.bytes, 2 * b.others() * b.bytes};
  e.out = 2 * b.bytes * ways_out(b);
  if (b.slowness > 1) e.out = std::max(e.out / b.slowness, b.bytes * (1 + 1 / chunks));
  return e;
}

Cost rooted_cost(const Workload& b) {
  const double half = b.messages_for(b.bytes / 2, 1);
  const Work moved{b.in_turn() * (b.sides() * b.bytes + pipe_filling(b, 1)), b.in_turn() * 2 * b.others() * b.bytes};
  // Each rank waits for both of its trees, which in shared memory leaves little to overlap: 4 ranks on 2 CPUs take 3 us
  // for 8 B, 8 take 9.
  const double passed_on = b.shares_memory ? 0.75 : kPassedOn;
  Cost e = b.hops(passed_on * 2 * b.depth() + b.bytes / (2 * b.slot_bytes), kPassedOn * 2 * b.host_depth());
  b.over_distances(e, {4 * half, 4 * b.others() * half}, moved);
  if (b.sums) e.summed = moved;
  // A rank's two parents send to it at once.
  e.out = b.incast() * b.bytes * ways_out(b) + std::max(0, b.host_depth() - 1) * b.piece_behind(b.bytes, 2);
  return e;
}

// The share of the sent blocks that leave the host: over a distance d, those of d of its ranks do.
double out_of_circle(const Workload& b) {
  double blocks = 0;
  for (double d = 1; d < b.n; d *= 2) blocks += std::min(d, b.n - d) * std::min(1.0, d / b.here);
  return b.hosts > 1 ? blocks / b.others() : 0;
}

Cost gather_cost(const Workload& b) {
  const double out = out_of_circle(b);
  Cost e = b.hops(b.depth() + b.others() * b.bytes / b.slot_bytes / 2, b.depth());
  b.split(e, b.each(2 * b.others() * b.messages_for(b.bytes, 1)),
          b.passed_on(b.each(b.in_turn() * 2 * b.others() * b.bytes)), out);
  if (b.sums) e.summed = b.each(2 * b.others() * b.bytes);
  e.out = b.here * b.others() * out * b.bytes;
  return e;
}

}  // namespace

extern const Algorithm kTree = {
    .name = "tree",
    .all_reduce = {tree_all_reduce, trees_cost},
    .broadcast = {tree_broadcast, rooted_cost},
    .reduce = {tree_reduce, rooted_cost},
    .all_gather = {circulant_all_gather, gather_cost},
    .reduce_scatter = {circulant_reduce_scatter, gather_cost},
};

}  // namespace tutti
