#include <algorithm>
#include <cassert>

#include "schedule/schedule.h"

namespace tutti {
namespace {

// This rank's place in a ring.
struct Place {
  int n, position;
  int prev, next;  // ranks
};

Place find_place(std::span<const int> ring, int rank) {
  const int n = static_cast<int>(ring.size());
  const auto at = std::find(ring.begin(), ring.end(), rank);
  assert(at != ring.end());
  const int position = static_cast<int>(at - ring.begin());
  const auto neighbour = [&](int by) { return ring[static_cast<size_t>((position + by) % n)]; };
  return {n, position, neighbour(n - 1), neighbour(1)};
}

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
// Chunks that the last group lacks are left out on both sides of their links: fewer messages in the same order never
// need more slots.
void add_tick(std::vector<Step>& steps, const Place& place, uint32_t n_chunks, uint32_t group, int tick) {
  const int n = place.n;
  const uint32_t index = static_cast<uint32_t>((place.position - 1 - tick + 2 * n) % n);
  const uint32_t chunk = group * static_cast<uint32_t>(n) + index;
  if (chunk >= n_chunks) return;
  Step step{.chunk = chunk};
  if (tick > 0) step.recv = place.prev;
  if (tick < 2 * n - 2) step.send = place.next;
  if (tick < n) step.local = {Buffer::kInput, chunk};
  if (tick >= n - 1) step.store = {Buffer::kOutput, chunk};
  step.completes = tick == n - 1;
  steps.push_back(step);
}

}  // namespace

Schedule ring_all_reduce(std::span<const int> ring, int rank, uint32_t n_chunks, uint32_t n_lanes) {
  const Place place = find_place(ring, rank);
  const uint32_t n = static_cast<uint32_t>(place.n);
  const uint32_t n_groups = (n_chunks + n - 1) / n;
  const int last_tick = 2 * place.n - 2;
  Schedule schedule{.rank = rank, .n_ranks = place.n, .n_chunks = n_chunks};
  for (uint32_t lane = 0; lane < std::min(n_lanes, n_groups); lane++) {
    std::vector<Step> steps;
    add_tick(steps, place, n_chunks, lane, 0);
    for (uint32_t group = lane; group < n_groups; group += n_lanes) {
      for (int tick = 1; tick < last_tick; tick++) add_tick(steps, place, n_chunks, group, tick);
      // The next group's first message needs nothing from anyone: it leaves before the wait for this group's last one,
      // which saves one hop of 2n-2 per group. Every rank is then two messages ahead at most, hence two slots.
      if (group + n_lanes < n_groups) add_tick(steps, place, n_chunks, group + n_lanes, 0);
      if (last_tick > 0) add_tick(steps, place, n_chunks, group, last_tick);
    }
    if (!steps.empty()) schedule.lanes.push_back({lane, std::move(steps)});
  }
  return schedule;
}

// root --> next --> ... --> root's predecessor; nothing closes the ring, so nobody can wait in a circle.
Schedule ring_broadcast(std::span<const int> ring, int rank, int root, uint32_t n_chunks, uint32_t n_lanes) {
  const Place place = find_place(ring, rank);
  const bool is_last = place.next == root;
  Schedule schedule{.rank = rank, .n_ranks = place.n, .n_chunks = n_chunks, .input_blocks = rank == root};
  for (uint32_t lane = 0; lane < std::min(n_lanes, n_chunks); lane++) {
    std::vector<Step> steps;
    for (uint32_t chunk = lane; chunk < n_chunks; chunk += n_lanes) {
      Step step{.chunk = chunk, .store = {Buffer::kOutput, chunk}};
      if (rank == root) step.local = {Buffer::kInput, chunk};
      if (rank != root) step.recv = place.prev;
      if (!is_last) step.send = place.next;
      steps.push_back(step);
    }
    schedule.lanes.push_back({lane, std::move(steps)});
  }
  return schedule;
}

}  // namespace tutti
