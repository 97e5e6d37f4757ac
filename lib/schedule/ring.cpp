#include <algorithm>

#include "schedule/algorithms.h"
#include "schedule/trips.h"

namespace tutti {
namespace {

// A group of n chunks takes 2n-1 ticks. In each tick every rank handles another chunk, the one that its predecessor
// handled in the tick before; chunk c is complete in tick n-1, at position c % n:
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
// Each lane has its own group and channel. Two slots.
struct Trip {
  int first_tick, last_tick;
  bool has_blocks;  // reduce-scatter or all-gather
  bool reduces;
};

Step ring_step(const InOrder& place, const Trip& trip, uint32_t n_lanes, uint32_t lane, int tick) {
  const int n = place.n;
  const uint32_t index = static_cast<uint32_t>((place.position - 1 - tick + 2 * n) % n);
  const uint32_t chunk = trip.has_blocks ? static_cast<uint32_t>(place.ranks[index]) * n_lanes + lane
                                         : lane * static_cast<uint32_t>(n) + index;
  Step step{.chunk = chunk};
  if (tick > trip.first_tick) step.recv = place.at(-1);
  if (tick < trip.last_tick) step.send = place.at(1);
  if (tick < n) step.local = input_of(trip.reduces ? chunk : lane);
  if (tick >= n - 1) step.store = output_of(trip.has_blocks && trip.reduces ? lane : chunk);
  step.completes = trip.reduces && tick == n - 1;
  return step;
}

Schedule ring_schedule(const Ranks& r, const Trip& trip) {
  const InOrder place(r.order, r.rank);
  const auto n = static_cast<uint32_t>(place.n);
  Schedule schedule{.rank = r.rank, .n_ranks = place.n, .n_chunks = trip.has_blocks ? r.lanes : n * r.lanes};
  for (uint32_t lane = 0; lane < r.lanes; lane++) {
    Steps steps;
    const auto make = [&](int tick) { return ring_step(place, trip, r.lanes, lane, tick); };
    if (!trip.has_blocks)
      repeat_ticks(steps, trip.first_tick, place.n - 1, trip.last_tick, {.stride = n - 1, .modulus = n}, make);
    for (int tick = trip.first_tick; trip.has_blocks && tick <= trip.last_tick; tick++) steps.push_back(make(tick));
    schedule.add_lane(lane, std::move(steps));
  }
  return schedule;
}

Schedule ring_all_reduce(const Ranks& r) {
  Schedule schedule = ring_schedule(r, {0, 2 * r.n() - 2, false, true});
  schedule.alike = {1, {.stride = 1, .modulus = static_cast<uint32_t>(r.n())}};
  return schedule;
}

Schedule ring_reduce_scatter(const Ranks& r) {
  return ring_schedule(r, {0, r.n() - 1, true, true});
}

Schedule ring_all_gather(const Ranks& r) {
  return ring_schedule(r, {r.n() - 1, 2 * r.n() - 2, true, false});
}

// root --> next --> ... --> root's predecessor; the ring is not closed, so there is no circular wait. One slot.
Schedule ring_broadcast(const Ranks& r) {
  const InOrder place(r.order, r.rank);
  Step step{.store = output_of(0)};
  if (r.rank == r.root) step.local = input_of(0);
  if (r.rank != r.root) step.recv = place.at(-1);
  if (place.at(1) != r.root) step.send = place.at(1);
  return with_lane({.rank = r.rank, .n_ranks = place.n, .n_chunks = 1}, {step});
}

// root's successor --> ... --> root's predecessor --> root. One slot.
Schedule ring_reduce(const Ranks& r) {
  const InOrder place(r.order, r.rank);
  Step step{.local = input_of(0), .completes = r.rank == r.root};
  if (place.at(-1) != r.root) step.recv = place.at(-1);
  if (r.rank != r.root) step.send = place.at(1);
  if (r.rank == r.root) step.store = output_of(0);
  return with_lane({.rank = r.rank, .n_ranks = place.n, .n_chunks = 1}, {step});
}

// Hops between hosts of data that goes round to all ranks; with one rank per host, the last hop is left out.
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
  // A reduce's root that is the first rank of its host receives from another host.
  const double out = b.sums ? hops_out(b) : b.hosts - 1;
  // In shared memory chunks go down the chain while they are in the caches: 8 ranks on 2 CPUs broadcast 2 to 16 MiB in
  // 0.65 of the time that trees take, 4 ranks in .88 to 1.13.
  const double chunks = b.shares_memory && !b.sums ? 0 : b.bytes / b.slot_bytes;
  // In shared memory consecutive operations overlap, however long the chain: 4 ranks on 2 CPUs broadcast 8 B in .5 to
  // .65 us, 8 ranks in 1.4 to 1.6.
  const double hops = b.shares_memory ? 0.35 : kPassedOn * b.others();
  Cost e = b.hops(hops + chunks, kPassedOn * out);
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

extern const Algorithm kRing = {
    .name = "ring",
    .all_reduce = {ring_all_reduce, ring_cost, true},
    .broadcast = {ring_broadcast, chain_cost},
    .reduce = {ring_reduce, chain_cost},
    .all_gather = {ring_all_gather, round_cost, true},
    .reduce_scatter = {ring_reduce_scatter, round_cost, true},
};

}  // namespace tutti
