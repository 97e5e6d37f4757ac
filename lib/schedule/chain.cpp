// chain: the sum goes from rank to rank, in their order, and the result back or on. So it keeps the order of ranks, and
// a rank has links with its two neighbours alone, however many ranks there are.
#include <algorithm>

#include "schedule/algorithms.h"

namespace tutti {
namespace {

//   rank 0        rank 1        rank 2
//   in --up--> + in --up--> + in = sum
//   out <-down-- out <-down--/
//
// Up and down are lanes of their own, on one channel: up sends to the next rank and receives from the one before, down
// the other way round. The last rank, where the sums turn, has an up lane alone.
struct Chain {
  int n, rank;
  bool is_last() const { return rank == n - 1; }

  // The sum of `chunk` so far goes on; in the end it is stored there, and sent to `to`.
  Step up(uint32_t chunk, Slice sum, int to) const {
    Step step{.recv = rank - 1, .send = rank + 1, .chunk = chunk, .local = {Buffer::kInput, chunk}};
    if (!is_last()) return step;
    step.send = to;
    step.store = sum;
    step.completes = true;
    return step;
  }
  Step down(uint32_t chunk, Slice store) const {
    return {.recv = rank + 1, .send = rank - 1, .chunk = chunk, .store = store};
  }
};

// What goes up, and what comes down. The first piece has to go all the way before the last rank has anything.
Cost cost_of(const Workload& b, double up, double down) {
  const double whole = b.messages_for(up, 1), part = down > 0 ? b.messages_for(down, 1) : 0;
  const double steps = (down > 0 ? 2 : 1) * b.others(), filling = (steps - 1) * std::min(b.slot_bytes, up);
  // Each rank of a chain has to be woken by the one before: 8 B between 2 and 3 hosts took 1.4 to 1.8 times as long as
  // hops that overlap.
  constexpr double kWoken = 1.8;
  Cost e = b.hops(kWoken * steps, kWoken * steps / b.others() * (b.hosts - 1));
  b.to_next(e, {2 * (whole + part), 2 * b.others() * (whole + part)},
            b.passed_on({2 * (up + down) + filling, 2 * b.others() * (up + down)}), (b.hosts - 1) / b.others());
  e.summed = {up, b.others() * up};
  // Hosts in the middle send both; of two, one sends up and the other down.
  e.out = (b.hosts > 2 ? up + down : std::max(up, down)) + std::max(0.0, b.hosts - 2) * b.piece_behind(up, 1);
  return e;
}

}  // namespace

// In place, the input has been read by the step that sends it up, and the result comes only after that was received.
Schedule chain_all_reduce(int n_ranks, int rank, uint32_t n_chunks) {
  Schedule schedule{.rank = rank, .n_ranks = n_ranks, .n_chunks = n_chunks};
  const Chain chain{n_ranks, rank};
  Steps up, down;
  for (uint32_t c = 0; c < n_chunks; c++) {
    up.push_back(chain.up(c, {Buffer::kOutput, c}, rank - 1));
    if (!chain.is_last()) down.push_back(chain.down(c, {Buffer::kOutput, c}));
  }
  schedule.add_lane(0, std::move(up));
  schedule.add_lane(0, std::move(down));
  return schedule;
}

// The last rank hands the sums to the root.
Schedule chain_reduce(int n_ranks, int rank, int root, uint32_t n_chunks) {
  Schedule schedule{.rank = rank, .n_ranks = n_ranks, .n_chunks = n_chunks, .output_blocks = rank == root};
  const Chain chain{n_ranks, rank};
  Steps up, to_root;
  for (uint32_t c = 0; c < n_chunks; c++) {
    const Slice out{Buffer::kOutput, c};
    up.push_back(chain.up(c, rank == root ? out : Slice{}, rank == root ? -1 : root));
    if (rank == root && !chain.is_last()) to_root.push_back({.recv = n_ranks - 1, .chunk = c, .store = out});
  }
  schedule.add_lane(0, std::move(up));
  schedule.add_lane(0, std::move(to_root));
  return schedule;
}

// All blocks go up, and each comes down as far as its rank.
Schedule chain_reduce_scatter(int n_ranks, int rank, uint32_t n_chunks) {
  const auto n = static_cast<uint32_t>(n_ranks), own = static_cast<uint32_t>(rank);
  Schedule schedule{.rank = rank, .n_ranks = n_ranks, .n_chunks = n_chunks, .input_blocks = n};
  const Chain chain{n_ranks, rank};
  Steps up, down;
  for (uint32_t block = 0; block < n; block++)
    for (uint32_t c = block * n_chunks; c < (block + 1) * n_chunks; c++) {
      const Slice out = block == own ? Slice{Buffer::kOutput, c - block * n_chunks} : Slice{};
      up.push_back(chain.up(c, out, block == own ? -1 : rank - 1));
      if (chain.is_last() || block > own) continue;
      Step step = chain.down(c, out);
      if (block == own) step.send = -1;
      down.push_back(step);
    }
  schedule.add_lane(0, std::move(up));
  schedule.add_lane(0, std::move(down));
  return schedule;
}

extern const Algorithm kChain = {
    .name = "chain",
    .all_reduce = {[](Ranks r) { return chain_all_reduce(r.n(), r.rank, 1); },
                   [](const Workload& b) { return cost_of(b, b.bytes, b.bytes); }},
    .reduce = {[](Ranks r) { return chain_reduce(r.n(), r.rank, r.root, 1); },
               [](const Workload& b) { return cost_of(b, b.bytes, 0); }},
    .reduce_scatter = {[](Ranks r) { return chain_reduce_scatter(r.n(), r.rank, 1); },
                       [](const Workload& b) { return cost_of(b, b.n * b.bytes, b.others() * b.bytes); }},
    .otherwise = Algo::kRing,
    .keeps_rank_order = true};

}  // namespace tutti
