// chain: the sum travels from rank to rank in rank order, and the result travels back, or on to the root. So additions
// keep rank order, and a rank has links only with its two neighbours (the last one with the root, too).
#include <algorithm>

#include "schedule/algorithms.h"

namespace tutti {
namespace {

//   rank 0        rank 1        rank 2
//   in --up--> + in --up--> + in = sum
//   out <-down-- out <-down--/
//
// Up and down are separate lanes on one channel: up sends to the next rank and receives from the one before, down the
// other way round. The last rank, where the sums turn round, has only an up lane. One slot.
struct Chain {
  int n, rank;
  bool is_last() const { return rank == n - 1; }

  // Passes the sum of `chunk` so far on; the last rank stores it in `sum` and sends it to `to`.
  Step up(uint32_t chunk, Slice sum, int to) const {
    Step step{.recv = rank - 1, .send = rank + 1, .chunk = chunk, .local = input_of(chunk)};
    if (!is_last()) return step;
    step.send = to;
    step.store = sum;
    step.completes = true;
    return step;
  }
  Schedule schedule(Steps up, Steps down) const {
    Schedule made = with_lane({.rank = rank, .n_ranks = n, .n_chunks = 1}, std::move(up));
    made.add_lane(0, std::move(down));
    return made;
  }
};

// Safe in place: the step that sends the input up has read it, and the result comes only after that was received.
Schedule chain_all_reduce(const Ranks& r) {
  const Chain chain{r.n(), r.rank};
  Steps down;
  if (!chain.is_last()) down.push_back({.recv = r.rank + 1, .send = r.rank - 1, .store = output_of(0)});
  return chain.schedule({chain.up(0, output_of(0), r.rank - 1)}, std::move(down));
}

// The last rank hands the sums to the root.
Schedule chain_reduce(const Ranks& r) {
  const Chain chain{r.n(), r.rank};
  Steps to_root;
  if (r.rank == r.root && !chain.is_last()) to_root.push_back({.recv = r.n() - 1, .store = output_of(0)});
  const bool is_root = r.rank == r.root;
  return chain.schedule({chain.up(0, is_root ? output_of(0) : Slice{}, is_root ? -1 : r.root)}, std::move(to_root));
}

// All blocks go up, and each comes down as far as its rank.
Schedule chain_reduce_scatter(const Ranks& r) {
  const Chain chain{r.n(), r.rank};
  Steps up, down;
  for (int block = 0; block < r.n(); block++) {
    const auto chunk = static_cast<uint32_t>(block);
    const bool is_own = block == r.rank;
    const Slice out = is_own ? output_of(0) : Slice{};
    const int below = is_own ? -1 : r.rank - 1;
    up.push_back(chain.up(chunk, out, below));
    if (!chain.is_last() && block <= r.rank)
      down.push_back({.recv = r.rank + 1, .send = below, .chunk = chunk, .store = out});
  }
  return chain.schedule(std::move(up), std::move(down));
}

// `up`, `down`: bytes in each direction. The first piece has to go all the way before the last rank has anything.
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
  // Hosts in the middle send both ways; of two hosts, one sends up and the other down.
  e.out = (b.hosts > 2 ? up + down : std::max(up, down)) + std::max(0.0, b.hosts - 2) * b.piece_behind(up, 1);
  return e;
}

}  // namespace

extern const Algorithm kChain = {
    .name = "chain",
    .all_reduce = {chain_all_reduce, [](const Workload& b) { return cost_of(b, b.bytes, b.bytes); }},
    .reduce = {chain_reduce, [](const Workload& b) { return cost_of(b, b.bytes, 0); }},
    .reduce_scatter = {chain_reduce_scatter,
                       [](const Workload& b) { return cost_of(b, b.n * b.bytes, b.others() * b.bytes); }},
    .otherwise = Algo::kRing,
    .keeps_rank_order = true};

}  // namespace tutti
