#include "schedule/alike.h"

#include "schedule/simulation.h"

namespace tutti {
namespace {

using checker::wrong;

// Whether the step uses only slices of its own chunk of a single block, and only single peers.
bool is_plain(const Step& step, int n_ranks, uint32_t n_chunks) {
  const auto is_own = [&](const Slice& slice) {
    return slice.buffer == Buffer::kNone || (slice.buffer <= Buffer::kOutput && slice.chunk == step.chunk);
  };
  return step.recv >= -1 && step.recv < n_ranks && step.send >= -1 && step.send < n_ranks && step.chunk < n_chunks &&
         is_own(step.before) && is_own(step.local) && is_own(step.store);
}

bool is_moved(const Steps& first, const Steps& moved, const Symmetry& moves, uint32_t times) {
  const auto same = [&](const Step& a, const Step& b) { return moves.move(a, times) == b; };
  return std::ranges::equal(first.runs(), moved.runs()) && std::ranges::equal(first.patterns(), moved.patterns(), same);
}

bool is_moved(const Schedule& first, const Schedule& moved, const Symmetry& moves) {
  const uint32_t times = moves.times(moved.rank);
  return moved.n_ranks == first.n_ranks && moved.n_chunks == first.n_chunks && moved.may_expose == first.may_expose &&
         moved.alike == first.alike && std::ranges::equal(first.lanes, moved.lanes, [&](const Lane& a, const Lane& b) {
           return a.channel == b.channel && is_moved(a.steps, b.steps, moves, times);
         });
}

// Whether other ranks' schedules may be compared with this one.
bool can_be_first(const Schedule& schedule, const Symmetry& moves) {
  for (const Lane& lane : schedule.lanes) {
    for (const Steps::Run& run : lane.steps.runs())
      if (run.times > 1 && !moves.commutes_with(run.walk)) return false;
    for (const Step& pattern : lane.steps.patterns())
      if (!is_plain(pattern, schedule.n_ranks, schedule.n_chunks)) return false;
  }
  return true;
}

// All ranks' schedules, reduced to this chunk.
Result<std::vector<Schedule>> of_chunk(std::span<const Schedule> schedules, const Symmetry& moves, uint32_t chunk) {
  std::vector<Schedule> single;
  for (const Schedule& whole : schedules) {
    single.push_back({.rank = whole.rank, .n_ranks = whole.n_ranks, .n_chunks = 1, .may_expose = whole.may_expose});
    for (const Lane& lane : whole.lanes) single.back().lanes.push_back({lane.channel, {}});
  }
  std::vector<std::vector<uint32_t>> times(schedules[0].n_chunks);  // by chunk: the numbers of moves to `chunk`
  for (uint32_t k = 0; k < moves.count(); k++) times[moves.move_chunk_back(chunk, k)].push_back(k);
  for (int rank = 0; rank < moves.period(); rank++) {
    const std::vector<Lane>& lanes = schedules[static_cast<size_t>(rank)].lanes;
    for (size_t l = 0; l < lanes.size(); l++)
      for (const Step& step : lanes[l].steps) {
        if (step.chunk >= times.size()) return wrong(format("rank %d: there is no chunk %u", rank, step.chunk));
        for (const uint32_t k : times[step.chunk]) {
          Step moved = moves.move(step, k);
          moved.chunk = 0;
          for (Slice* slice : {&moved.before, &moved.local, &moved.store}) slice->chunk = 0;
          single[static_cast<size_t>(moves.move(rank, k))].lanes[l].steps.push_back(moved);
        }
      }
  }
  return single;
}

}  // namespace

bool Symmetry::divides_evenly(uint32_t n_chunks) const {
  const Walk& walk = alike_.walk;
  if (alike_.period <= 0 || n_ranks_ % alike_.period != 0 || walk.modulus == 0) return false;
  return n_chunks % walk.modulus == 0 && uint64_t{count()} * walk.stride % walk.modulus == 0;
}

Step Symmetry::move(Step step, uint32_t times) const {
  step = alike_.walk.move(step, times);
  step.recv = move(step.recv, times);
  step.send = move(step.send, times);
  return step;
}

bool are_alike(std::span<const Schedule> schedules) {
  const Symmetry moves(schedules[0].alike, static_cast<int>(schedules.size()));
  if (!moves.divides_evenly(schedules[0].n_chunks)) return false;
  for (int rank = 0; rank < static_cast<int>(schedules.size()); rank++) {
    const Schedule& moved = schedules[static_cast<size_t>(rank)];
    const Schedule& first = schedules[static_cast<size_t>(moves.first(rank))];
    if (moved.rank != rank || !is_moved(first, moved, moves)) return false;
    if (rank < moves.period() && !can_be_first(moved, moves)) return false;
  }
  return true;
}

Result<void> checker::check_alike(std::span<const Schedule> schedules, const CheckOptions& options) {
  const Symmetry moves(schedules[0].alike, static_cast<int>(schedules.size()));
  TUTTI_TRY(Simulation(schedules, options, moves, {}).run());
  for (uint32_t chunk = 0; chunk < schedules[0].n_chunks; chunk++) {
    if (!moves.is_first_chunk(chunk)) continue;
    TUTTI_TRY_ASSIGN(const std::vector<Schedule> single, of_chunk(schedules, moves, chunk));
    const auto checked = check_each(single, options);
    if (!checked) return wrong(format("chunk %u, by itself as chunk 0: ", chunk) + checked.error().message);
  }
  return {};
}

}  // namespace tutti
