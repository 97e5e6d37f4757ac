#include <algorithm>

#include "schedule/algorithms.h"
#include "schedule/trips.h"

namespace tutti {
namespace {

// A group of n chunks takes 2n-1 ticks. In each tick every rank handles another chunk, the one that its predecessor
// handled in the tick before; it leaves the last rank complete in tick n-1, at position c % n:
//
//   tick 0       1            ...  n-1                  n              ...  2n-2
//   in, send     recv+in, send     recv+in, out, send   recv, out, send     recv, out
//
//   chunk by rank and tick, n = 3; * is where the sum is complete:
//     tick       0   1   2   3   4
//     position 0 2   1   0*  2   1
//     position 1 0   2   1*  0   2
//     position 2 1   0   2*  1   0
//
// Reduce-scatter is the ticks up to n-1, all-gather those from n-1 on; a group there is one chunk of each rank's block.
struct Trip {
  int first_tick, last_tick;
  bool has_blocks;  // of reduce-scatter and all-gather
  bool reduces;
};

struct RingLane {
  const InOrder& place;
  const Trip& trip;
  uint32_t n_chunks;
  Steps& steps;

  Step step_of(uint32_t group, int tick) const {
    const int n = place.n;
    const uint32_t index = static_cast<uint32_t>((place.position - 1 - tick + 2 * n) % n);
    const uint32_t chunk = trip.has_blocks ? static_cast<uint32_t>(place.ranks[index]) * n_chunks + group
                                           : group * static_cast<uint32_t>(n) + index;
    Step step{.chunk = chunk};
    if (tick > trip.first_tick) step.recv = place.at(-1);
    if (tick < trip.last_tick) step.send = place.at(1);
    if (tick < n) step.local = {Buffer::kInput, trip.reduces ? chunk : group};
    if (tick >= n - 1) step.store = {Buffer::kOutput, trip.has_blocks && trip.reduces ? group : chunk};
    step.completes = trip.reduces && tick == n - 1;
    return step;
  }

  // Chunks that the last group lacks are left out on both sides of their links: fewer messages in the same order never
  // need more slots.
  void add_ticks(uint32_t group, int first, int last) const {
    const auto n = static_cast<uint32_t>(place.n);
    if (!trip.has_blocks && (group + 1) * n <= n_chunks) {
      const auto times = static_cast<uint32_t>(last - first + 1);
      return steps.repeat({{step_of(group, first)}}, times, {.stride = n - 1, .modulus = n});
    }
    for (int tick = first; tick <= last; tick++)
      if (const Step step = step_of(group, tick); trip.has_blocks || step.chunk < n_chunks) steps.push_back(step);
  }
};

Schedule ring_schedule(std::span<const int> ring, int rank, const Trip& trip, uint32_t n_chunks, uint32_t n_lanes) {
  const InOrder place(ring, rank);
  const uint32_t n = static_cast<uint32_t>(place.n);
  const uint32_t n_groups = trip.has_blocks ? n_chunks : (n_chunks + n - 1) / n;
  Schedule schedule{.rank = rank, .n_ranks = place.n, .n_chunks = n_chunks};
  for (uint32_t lane = 0; lane < std::min(n_lanes, n_groups); lane++) {
    Steps steps;
    const RingLane made{place, trip, n_chunks, steps};
    for_each_tick(static_cast<int>(lane), static_cast<int>(n_groups), static_cast<int>(n_lanes),
                  trip.last_tick - trip.first_tick + 1, [&](int group, int first, int last) {
                    for_each_part(place.n - 1, trip.first_tick + first, trip.first_tick + last,
                                  [&](int from, int to) { made.add_ticks(static_cast<uint32_t>(group), from, to); });
                  });
    schedule.add_lane(lane, std::move(steps));
  }
  return schedule;
}

// Calls step(chunk) for the steps of lanes that deal the chunks out among them.
template <class MakeStep>
void add_lanes(Schedule& schedule, uint32_t n_lanes, MakeStep step) {
  for (uint32_t lane = 0; lane < std::min(n_lanes, schedule.n_chunks); lane++) {
    Steps steps;
    for (uint32_t chunk = lane; chunk < schedule.n_chunks; chunk += n_lanes) steps.push_back(step(chunk));
    schedule.add_lane(lane, std::move(steps));
  }
}

// Between hosts, of what goes round to all ranks; where a host has one only, the last hop is left out.
double hops_out(const Workload& b) {
  return b.here > 1 ? b.hosts : b.hosts - 1;
}

Cost ring_cost(const Workload& b) {
  const double part = b.bytes / b.n;
  Cost e = b.hops(2 * b.others() * b.rounds(part), 2 * hops_out(b) * b.rounds(part));
  b.to_next(e, b.each(4 * b.others() * b.messages_for(part, 1)), b.passed_on(b.each(2 * b.others() * part)),
            b.hosts / b.n);
  e.summed = b.each(2 * b.others() * part);
  e.out = 2 * b.others() * part;
  return e;
}

Cost chain_cost(const Workload& b) {
  const double whole = b.messages_for(b.bytes, 1), filling = std::max(0.0, b.others() - 1) * b.piece_behind(b.bytes, 1);
  const Work moved{b.sides() * b.bytes + filling, 2 * b.others() * b.bytes};
  // A root that is the first of its host gets what it reduces from another one.
  const double out = b.sums ? hops_out(b) : b.hosts - 1;
  // In shared memory chunks go down the chain while they are in the caches: 8 ranks on 2 CPUs broadcast 2 to 16 MiB in
  // 0.65 of what trees take them, 4 in .88 to 1.13.
  const double chunks = b.shares_memory && !b.sums ? 0 : b.bytes / b.slot_bytes;
  Cost e = b.hops(kPassedOn * b.others() + chunks, kPassedOn * out);
  b.to_next(e, {2 * whole, 2 * b.others() * whole}, moved, out / b.others());
  if (b.sums) e.summed = moved;
  e.out = b.bytes + std::max(0.0, b.hosts - 2) * b.piece_behind(b.bytes, 1);
  return e;
}

Cost round_cost(const Workload& b) {
  Cost e = b.hops(b.others() * b.rounds(b.bytes), hops_out(b) * b.rounds(b.bytes));
  b.to_next(e, b.each(2 * b.others() * b.messages_for(b.bytes, 1)), b.passed_on(b.each(2 * b.others() * b.bytes)),
            b.hosts / b.n);
  if (b.sums) e.summed = b.each(2 * b.others() * b.bytes);
  e.out = b.others() * b.bytes;
  return e;
}

}  // namespace

Schedule ring_all_reduce(std::span<const int> ring, int rank, uint32_t n_chunks, uint32_t n_lanes) {
  const int n = static_cast<int>(ring.size());
  Schedule schedule = ring_schedule(ring, rank, {0, 2 * n - 2, false, true}, n_chunks, n_lanes);
  schedule.alike = {1, {.stride = 1, .modulus = static_cast<uint32_t>(n)}};
  return schedule;
}

Schedule ring_reduce_scatter(std::span<const int> ring, int rank, uint32_t n_chunks, uint32_t n_lanes) {
  const int n = static_cast<int>(ring.size());
  Schedule schedule = ring_schedule(ring, rank, {0, n - 1, true, true}, n_chunks, n_lanes);
  schedule.input_blocks = static_cast<uint32_t>(n);
  return schedule;
}

Schedule ring_all_gather(std::span<const int> ring, int rank, uint32_t n_chunks, uint32_t n_lanes) {
  const int n = static_cast<int>(ring.size());
  Schedule schedule = ring_schedule(ring, rank, {n - 1, 2 * n - 2, true, false}, n_chunks, n_lanes);
  schedule.output_blocks = static_cast<uint32_t>(n);
  return schedule;
}

// root --> next --> ... --> root's predecessor; nothing closes the ring, so nobody can wait in a circle.
Schedule ring_broadcast(std::span<const int> ring, int rank, int root, uint32_t n_chunks, uint32_t n_lanes) {
  const InOrder place(ring, rank);
  Schedule schedule{.rank = rank, .n_ranks = place.n, .n_chunks = n_chunks, .input_blocks = rank == root};
  add_lanes(schedule, n_lanes, [&](uint32_t chunk) {
    Step step{.chunk = chunk, .store = {Buffer::kOutput, chunk}};
    if (rank == root) step.local = {Buffer::kInput, chunk};
    if (rank != root) step.recv = place.at(-1);
    if (place.at(1) != root) step.send = place.at(1);
    return step;
  });
  return schedule;
}

// root's successor --> ... --> root's predecessor --> root
Schedule ring_reduce(std::span<const int> ring, int rank, int root, uint32_t n_chunks, uint32_t n_lanes) {
  const InOrder place(ring, rank);
  Schedule schedule{.rank = rank, .n_ranks = place.n, .n_chunks = n_chunks, .output_blocks = rank == root};
  add_lanes(schedule, n_lanes, [&](uint32_t chunk) {
    Step step{.chunk = chunk, .local = {Buffer::kInput, chunk}, .completes = rank == root};
    if (place.at(-1) != root) step.recv = place.at(-1);
    if (rank != root) step.send = place.at(1);
    if (rank == root) step.store = {Buffer::kOutput, chunk};
    return step;
  });
  return schedule;
}

extern const Algorithm kRing = {
    .name = "ring",
    .all_reduce = {[](Ranks r) { return ring_all_reduce(r.order, r.rank, r.n() * r.lanes, r.lanes); }, ring_cost, true},
    .broadcast = {[](Ranks r) { return ring_broadcast(r.order, r.rank, r.root, 1, 1); }, chain_cost},
    .reduce = {[](Ranks r) { return ring_reduce(r.order, r.rank, r.root, 1, 1); }, chain_cost},
    .all_gather = {[](Ranks r) { return ring_all_gather(r.order, r.rank, r.lanes, r.lanes); }, round_cost, true},
    .reduce_scatter = {[](Ranks r) { return ring_reduce_scatter(r.order, r.rank, r.lanes, r.lanes); }, round_cost,
                       true},
};

}  // namespace tutti
