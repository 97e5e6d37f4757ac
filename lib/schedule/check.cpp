#include <algorithm>

#include "schedule/alike.h"
#include "schedule/simulation.h"

namespace tutti {
namespace {

using checker::wrong;

Result<void> check_shape(std::span<const Schedule> schedules, const CheckOptions& options) {
  if (schedules.empty()) return wrong("there are no schedules to check");
  if (options.slots == 0 || options.rounds == 0) return wrong("a check needs at least one slot and one round");
  const int n_ranks = static_cast<int>(schedules.size());
  for (int rank = 0; rank < n_ranks; rank++) {
    const Schedule& schedule = schedules[static_cast<size_t>(rank)];
    if (schedule.rank != rank || schedule.n_ranks != n_ranks || schedule.n_chunks != schedules[0].n_chunks ||
        schedule.n_chunks == 0) {
      return wrong(format("rank %d: schedule %d is for rank %d of %d with %u chunks, not for rank %d of %d with %u",
                          rank, rank, schedule.rank, schedule.n_ranks, schedule.n_chunks, rank, n_ranks,
                          schedules[0].n_chunks));
    }
    if (options.goal == Goal::kBarrier && n_ranks > 1 && schedule.lanes.size() != 1)
      return wrong(format("rank %d: a barrier is one lane", rank));
  }
  return {};
}

Result<void> check_size(std::span<const Schedule> schedules, const CheckOptions& options, const GoalTable& table) {
  uint64_t most_blocks = table.logical_blocks;
  for (const RankBlocks& blocks : table.ranks)
    most_blocks = std::max({most_blocks, uint64_t{blocks.input.size()}, uint64_t{blocks.output.size()}});
  if (most_blocks * schedules[0].n_chunks * options.rounds > UINT32_MAX) return wrong("too many chunks in all rounds");
  return {};
}

}  // namespace

Result<void> check(std::span<const Schedule> schedules, const CheckOptions& options) {
  constexpr size_t kManyRanks = 512;  // with fewer, simulating every rank takes no longer
  TUTTI_TRY(check_shape(schedules, options));
  if (options.goal == Goal::kAllReduce && schedules.size() >= kManyRanks && are_alike(schedules))
    return checker::check_alike(schedules, options);
  return checker::check_each(schedules, options);
}

Result<void> checker::check_each(std::span<const Schedule> schedules, const CheckOptions& options) {
  const int n_ranks = static_cast<int>(schedules.size());
  TUTTI_TRY_ASSIGN(GoalTable table, goal_table(n_ranks, options));
  TUTTI_TRY(check_size(schedules, options, table));
  const Symmetry none({.period = n_ranks, .walk = {}}, n_ranks);
  return Simulation(schedules, options, none, CheckMemory(schedules, options, std::move(table))).run();
}

}  // namespace tutti
