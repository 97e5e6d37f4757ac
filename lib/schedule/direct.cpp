#include <algorithm>

#include "schedule/algorithms.h"

namespace tutti {
namespace {

// One chunk of the blocks of one rank's schedule; every function appends its steps for that chunk.
struct Direct {
  int n, rank;
  uint32_t n_chunks, c;
  Steps& steps;

  uint32_t chunk(int block) const { return static_cast<uint32_t>(block) * n_chunks + c; }
  Slice in(int block) const { return {Buffer::kInput, chunk(block)}; }
  Slice out(int block) const { return {Buffer::kOutput, chunk(block)}; }
  // Rotated, so that in their k-th steps all ranks send to different ones.
  int receiver(int k) const { return (rank + k) % n; }
  int sender(int k) const { return (rank - k + n) % n; }
  // Of the input the block for that rank, of the output the block from that one.
  void send(int to, uint32_t value) const { steps.push_back({.send = to, .chunk = value, .local = in(to)}); }
  void receive(int from, uint32_t value) const { steps.push_back({.recv = from, .chunk = value, .store = out(from)}); }
};

// One schedule of one lane, filled by add(direct) for chunk after chunk.
template <class Add>
Schedule direct_schedule(int n, int rank, uint32_t n_chunks, Add add) {
  Schedule schedule{.rank = rank, .n_ranks = n, .n_chunks = n_chunks};
  Steps steps;
  for (uint32_t c = 0; c < n_chunks; c++) add(Direct{n, rank, n_chunks, c, steps});
  schedule.add_lane(0, std::move(steps));
  return schedule;
}

// This rank's input, which is read once for the first receiver and `out`: 2 ranks broadcast 16 MiB in 1.2 ms instead of
// 1.8.
void send_to_all(Direct d, uint32_t chunk, Slice out) {
  for (int k = 1; k < d.n; k++)
    d.steps.push_back(
        {.send = d.receiver(k), .chunk = chunk, .local = k == 1 ? d.in(0) : out, .store = k == 1 ? out : Slice{}});
  if (d.n == 1) d.steps.push_back({.chunk = chunk, .local = d.in(0), .store = out});
}

// ((0 + 1) + 2) + ... into `out`, `in` being this rank's part.
Step fold(int n, uint32_t chunk, Slice in, Slice out) {
  return {.recv = n > 1 ? kEveryone : -1, .chunk = chunk, .local = in, .store = out, .completes = true};
}

}  // namespace

Schedule one_shot_all_reduce(int n_ranks, int rank, uint32_t n_chunks) {
  Schedule schedule = direct_schedule(n_ranks, rank, n_chunks, [](Direct d) {
    for (int k = 1; k < d.n; k++) d.steps.push_back({.send = d.receiver(k), .chunk = d.c, .local = d.in(0)});
    d.steps.push_back(fold(d.n, d.c, d.in(0), d.out(0)));
  });
  schedule.may_expose = false;  // in place, the sum overwrites what others still add up
  return schedule;
}

namespace {

//   in[0] in[1] in[2]      rank 0: 0*     --> all       Chunks go in groups of n; rank r adds up the group's r-th one
//     |     |     |        rank 1:    1*  --> all       and sends the sum to everybody.
//     v     v     v        rank 2:      2* -> all
//   rank 0  rank 1  rank 2
// With a root the sums go to that one alone.
void add_group(Direct d, uint32_t group, int root = -1) {
  const auto chunk_at = [&](int owner) { return group * static_cast<uint32_t>(d.n) + static_cast<uint32_t>(owner); };
  const uint32_t own = chunk_at(d.rank);
  const Slice in{Buffer::kInput, own}, out{Buffer::kOutput, own};
  const bool to_all = root < 0, keeps = to_all || d.rank == root;
  for (int k = 1; k < d.n; k++) {
    const uint32_t chunk = chunk_at(d.receiver(k));
    if (chunk < d.n_chunks)
      d.steps.push_back({.send = d.receiver(k), .chunk = chunk, .local = {Buffer::kInput, chunk}});
  }
  if (own < d.n_chunks) {
    Step sum = fold(d.n, own, in, keeps ? out : Slice{});
    if (!keeps)
      sum.send = root;
    else if (to_all && d.n > 1)
      sum.send = d.receiver(1);
    d.steps.push_back(sum);
  }
  for (int k = 2; k < d.n && own < d.n_chunks && to_all; k++)
    d.steps.push_back({.send = d.receiver(k), .chunk = own, .local = out});
  for (int k = 1; k < d.n && keeps; k++) {
    const uint32_t chunk = chunk_at(d.sender(k));
    if (chunk < d.n_chunks) d.steps.push_back({.recv = d.sender(k), .chunk = chunk, .store = {Buffer::kOutput, chunk}});
  }
}

// Over shared memory a rank copies the parts of its input, not all of it to each, and exposes them where they are
// registered. Between two ranks that took .91 to 1.12 of the one-shot's time from 40 KiB to 70 MB, and .35 to .75 of it
// from registered memory, which the planner cannot know of.
Cost parts_cost(const Workload& b) {
  const double part = b.bytes / b.n;
  Cost e = b.hops(2 * b.rounds(part), 2 * b.rounds(part));
  b.with_all(e, 4 * b.messages_for(part, 1), b.moves_of_sum() * part);
  e.summed = b.each(b.bytes);
  e.out = b.incast() * 2 * b.here * b.elsewhere() * part;
  return e;
}

// Over sockets 256 KiB by 2 ranks took 86 to 92 us, where a ring took 59 to 64.
Cost one_shot_cost(const Workload& b) {
  Cost e = b.hops(waits_for_all(b) * b.rounds(b.bytes), b.rounds(b.bytes));
  b.with_all(e, 2 * b.messages_for(b.bytes, 1), (b.shares_memory ? 1.15 : 1.3) * b.bytes);
  e.summed = b.each(b.n * b.bytes);
  e.out = b.incast() * b.here * b.elsewhere() * b.bytes;
  return e;
}

Cost two_shot_reduce_cost(const Workload& b) {
  const double part = b.bytes / b.n, messages = b.messages_for(part, 1), all = (2 * b.others() + 2) * b.n;
  Cost e = b.hops(2 * b.rounds(part), 2 * b.rounds(part));
  b.with_one(e, {3 * b.others() * messages, all * messages}, {3 * b.others() * part, all * part});
  e.summed = b.each(b.bytes);
  e.out = (b.here + 1) * b.elsewhere() * part;  // what comes to the root's host
  return e;
}

// In one chunk. In two, one side could take one out of its slot while the other still fills the next, but from 4 KiB to
// 16 MiB that took as long, and at 4 KiB 1.4 times as long (2 ranks, shared memory).
Cost direct_cost(const Workload& b) {
  const double messages = b.messages_for(b.bytes, 1);
  // A socket takes the root's last chunk only when it has taken the others.
  const double last_chunk = b.sums || b.shares_memory ? 0 : b.bytes / messages;
  // Whenever a root that does half of all the work does not run, all others wait: 4 ranks on 2 CPUs broadcast 256 KiB
  // to 16 MiB in 1.07 to 1.45 times what trees take.
  const double root_waits = b.sums || !b.shares_memory || b.n == 2 ? 1 : 1.1;
  const Work moved{root_waits * b.others() * b.bytes + last_chunk, 2 * b.others() * b.bytes};
  Cost e = b.hops(kPassedOn * b.rounds(b.bytes), kPassedOn * b.rounds(b.bytes));
  // To send over a socket is to do most of the receiver's work: in a row, 64 B to 7 ranks on one host take 31 us.
  const double at_root_each = b.shares_memory ? 1 : b.sums ? 0.5 : 2, each = b.sums ? b.incast() * messages : messages;
  b.with_one(e, {at_root_each * b.others() * each, 2 * b.others() * each}, moved);
  if (b.sums) e.summed = {b.n * b.bytes, 2 * b.others() * b.bytes};
  e.out = b.elsewhere() * b.bytes;
  return e;
}

// Everybody has a block for everybody, or gets one from everybody.
Cost direct_blocks_cost(const Workload& b) {
  Cost e = b.hops(b.rounds(b.bytes), b.rounds(b.bytes));
  // In a slot a sum reads what has come; many sockets at once take 1.15 times what one does, or where sums follow 1.05.
  b.with_all(e, 2 * b.messages_for(b.bytes, 1), (b.shares_memory ? 2 - b.sums : b.sums ? 2.1 : 2.3) * b.bytes);
  if (b.sums) e.summed = b.each(b.n * b.bytes);
  e.out = b.here * b.elsewhere() * b.bytes * b.incast();
  return e;
}

}  // namespace

Schedule two_shot_all_reduce(int n_ranks, int rank, uint32_t n_chunks, uint32_t n_lanes) {
  Schedule schedule{.rank = rank, .n_ranks = n_ranks, .n_chunks = n_chunks};
  const uint32_t n = static_cast<uint32_t>(n_ranks), n_groups = (n_chunks + n - 1) / n;
  for (uint32_t lane = 0; lane < std::min(n_lanes, n_groups); lane++) {
    Steps steps;
    for (uint32_t group = lane; group < n_groups; group += n_lanes)
      add_group({n_ranks, rank, n_chunks, 0, steps}, group);
    schedule.add_lane(lane, std::move(steps));
  }
  return schedule;
}

Schedule direct_reduce_scatter(int n_ranks, int rank, uint32_t n_chunks) {
  Schedule schedule = direct_schedule(n_ranks, rank, n_chunks, [](Direct d) {
    for (int k = 1; k < d.n; k++) d.send(d.receiver(k), d.chunk(d.receiver(k)));
    d.steps.push_back(fold(d.n, d.chunk(d.rank), d.in(d.rank), d.out(0)));
  });
  schedule.input_blocks = static_cast<uint32_t>(n_ranks);
  return schedule;
}

Schedule direct_reduce(int n_ranks, int rank, int root, uint32_t n_chunks) {
  Schedule schedule = direct_schedule(n_ranks, rank, n_chunks, [root](Direct d) {
    if (d.rank == root)
      d.steps.push_back(fold(d.n, d.c, d.in(0), d.out(0)));
    else
      d.steps.push_back({.send = root, .chunk = d.c, .local = d.in(0)});
  });
  schedule.output_blocks = rank == root;
  return schedule;
}

Schedule two_shot_reduce(int n_ranks, int rank, int root, uint32_t n_chunks) {
  Schedule schedule{.rank = rank, .n_ranks = n_ranks, .n_chunks = n_chunks};
  const auto n = static_cast<uint32_t>(n_ranks);
  Steps steps;
  for (uint32_t group = 0; group * n < n_chunks; group++) add_group({n_ranks, rank, n_chunks, 0, steps}, group, root);
  schedule.add_lane(0, std::move(steps));
  schedule.output_blocks = rank == root;
  return schedule;
}

Schedule direct_broadcast(int n_ranks, int rank, int root, uint32_t n_chunks) {
  Schedule schedule = direct_schedule(n_ranks, rank, n_chunks, [root](Direct d) {
    if (d.rank == root)
      send_to_all(d, d.c, d.out(0));
    else
      d.steps.push_back({.recv = root, .chunk = d.c, .store = d.out(0)});
  });
  schedule.input_blocks = rank == root;
  return schedule;
}

Schedule direct_all_gather(int n_ranks, int rank, uint32_t n_chunks) {
  Schedule schedule = direct_schedule(n_ranks, rank, n_chunks, [](Direct d) {
    send_to_all(d, d.chunk(d.rank), d.out(d.rank));
    for (int k = 1; k < d.n; k++) d.receive(d.sender(k), d.chunk(d.sender(k)));
  });
  schedule.output_blocks = static_cast<uint32_t>(n_ranks);
  return schedule;
}

Schedule all_to_all(int n_ranks, int rank, uint32_t n_chunks) {
  Schedule schedule = direct_schedule(n_ranks, rank, n_chunks, [](Direct d) {
    const auto chunk = [&](int from, int to) { return d.chunk(from * d.n + to); };
    d.steps.push_back({.chunk = chunk(d.rank, d.rank), .local = d.in(d.rank), .store = d.out(d.rank)});
    for (int k = 1; k < d.n; k++) d.send(d.receiver(k), chunk(d.rank, d.receiver(k)));
    for (int k = 1; k < d.n; k++) d.receive(d.sender(k), chunk(d.sender(k), d.rank));
  });
  schedule.input_blocks = schedule.output_blocks = static_cast<uint32_t>(n_ranks);
  return schedule;
}

Schedule gather(int n_ranks, int rank, int root, uint32_t n_chunks) {
  Schedule schedule = direct_schedule(n_ranks, rank, n_chunks, [root](Direct d) {
    if (d.rank != root) return d.steps.push_back({.send = root, .chunk = d.chunk(d.rank), .local = d.in(0)});
    d.steps.push_back({.chunk = d.chunk(root), .local = d.in(0), .store = d.out(root)});
    for (int k = 1; k < d.n; k++) d.receive(d.receiver(k), d.chunk(d.receiver(k)));
  });
  schedule.output_blocks = rank == root ? static_cast<uint32_t>(n_ranks) : 0;
  return schedule;
}

Schedule scatter(int n_ranks, int rank, int root, uint32_t n_chunks) {
  Schedule schedule = direct_schedule(n_ranks, rank, n_chunks, [root](Direct d) {
    if (d.rank != root) return d.steps.push_back({.recv = root, .chunk = d.chunk(d.rank), .store = d.out(0)});
    for (int k = 1; k < d.n; k++) d.send(d.receiver(k), d.chunk(d.receiver(k)));
    d.steps.push_back({.chunk = d.chunk(root), .local = d.in(root), .store = d.out(0)});
  });
  schedule.input_blocks = rank == root ? static_cast<uint32_t>(n_ranks) : 0;
  return schedule;
}

extern const Algorithm kDirect = {
    .name = "direct",
    .all_reduce = {[](Ranks r) { return two_shot_all_reduce(r.n(), r.rank, r.n() * r.lanes, r.lanes); }, parts_cost,
                   true},
    .broadcast = {[](Ranks r) { return direct_broadcast(r.n(), r.rank, r.root, 1); }, direct_cost},
    .reduce = {[](Ranks r) {
                 return r.n() > 2 ? two_shot_reduce(r.n(), r.rank, r.root, r.n())
                                  : direct_reduce(r.n(), r.rank, r.root, 1);
               },
               [](const Workload& b) { return b.n > 2 ? two_shot_reduce_cost(b) : direct_cost(b); }},
    .all_gather = {[](Ranks r) { return direct_all_gather(r.n(), r.rank, 1); }, direct_blocks_cost},
    .reduce_scatter = {[](Ranks r) { return direct_reduce_scatter(r.n(), r.rank, 1); }, direct_blocks_cost},
    .keeps_rank_order = true,
    .meets_all = true,
};
extern const Algorithm kOneShot = {
    .name = "oneshot",
    .all_reduce = {[](Ranks r) { return one_shot_all_reduce(r.n(), r.rank, 1); }, one_shot_cost},
    .reduce = {[](Ranks r) { return direct_reduce(r.n(), r.rank, r.root, 1); }, direct_cost},
    .otherwise = Algo::kDirect,
    .keeps_rank_order = true,
    .meets_all = true};

}  // namespace tutti
