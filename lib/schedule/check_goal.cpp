#include <deque>
#include <map>
#include <utility>

#include "schedule/check_memory.h"

namespace tutti {
namespace {

using checker::wrong;

bool has_in_place(Goal goal) {
  return goal != Goal::kAllToAll && goal != Goal::kBarrier && goal != Goal::kSendRecv;
}

std::vector<uint32_t> every(uint32_t count, uint32_t first, uint32_t stride = 1) {
  std::vector<uint32_t> blocks(count);
  for (uint32_t i = 0; i < count; i++) blocks[i] = first + i * stride;
  return blocks;
}

RankBlocks blocks_of(Goal goal, uint32_t n, uint32_t rank, bool is_root) {
  const std::vector<uint32_t> one = {0}, own = {rank}, none;
  const auto all = [&] { return every(n, 0); };
  switch (goal) {
    case Goal::kAllReduce: return {one, one};
    case Goal::kBroadcast: return {is_root ? one : none, one};
    case Goal::kReduce: return {one, is_root ? one : none};
    case Goal::kAllGather: return {own, all()};
    case Goal::kReduceScatter: return {all(), own};
    case Goal::kAllToAll: return {every(n, rank * n), every(n, rank, n)};
    case Goal::kGather: return {own, is_root ? all() : none};
    case Goal::kScatter: return {is_root ? all() : none, own};
    default: break;  // a barrier has no blocks, and messages have their own table
  }
  return {};
}

// The logical blocks are the sends of all ranks; d's k-th receive from s is s's k-th send to d.
Result<GoalTable> transfer_table(int n_ranks, std::span<const Transfers> transfers) {
  if (transfers.size() != static_cast<size_t>(n_ranks)) return wrong("each rank needs its list of transfers");
  GoalTable table{.logical_blocks = 0, .ranks = std::vector<RankBlocks>(transfers.size())};
  std::map<std::pair<int, int>, std::deque<uint32_t>> sent;  // by sender and receiver
  for (int rank = 0; rank < n_ranks; rank++)
    for (const int to : transfers[static_cast<size_t>(rank)].sends) {
      table.ranks[static_cast<size_t>(rank)].input.push_back(table.logical_blocks);
      sent[{rank, to}].push_back(table.logical_blocks++);
    }
  for (int rank = 0; rank < n_ranks; rank++)
    for (const int from : transfers[static_cast<size_t>(rank)].receives) {
      std::deque<uint32_t>& left = sent[{from, rank}];
      if (left.empty()) return wrong(format("rank %d receives more than rank %d sends to it", rank, from));
      table.ranks[static_cast<size_t>(rank)].output.push_back(left.front());
      left.pop_front();
    }
  for (const auto& [pair, blocks] : sent) {
    if (!blocks.empty()) return wrong(format("rank %d sends more than rank %d receives", pair.first, pair.second));
  }
  return table;
}

}  // namespace

Result<GoalTable> goal_table(int n_ranks, const CheckOptions& options) {
  const Goal goal = options.goal;
  if (traits(goal).has_root() && (options.root < 0 || options.root >= n_ranks))
    return wrong(format("root %d is not one of %d ranks", options.root, n_ranks));
  if (options.in_place && !has_in_place(goal)) return wrong("this collective cannot run in place");
  if (goal == Goal::kSendRecv) return transfer_table(n_ranks, options.transfers);
  const auto n = static_cast<uint32_t>(n_ranks);
  GoalTable table;
  table.reduces = traits(goal).reduces;
  if (traits(goal).has_block_per_rank()) table.logical_blocks = n;
  if (goal == Goal::kAllToAll) table.logical_blocks = n * n;
  for (uint32_t rank = 0; rank < n; rank++)
    table.ranks.push_back(blocks_of(goal, n, rank, static_cast<int>(rank) == options.root));
  return table;
}

}  // namespace tutti
