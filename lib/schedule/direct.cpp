// All ranks exchange directly: one or two hops, links between all pairs. Each sum is added up at one place, in one step
// and strictly in rank order, whatever the chunks, so it is rounded once. One slot is enough, except for the two-shot
// all-reduce, which needs two.
#include <algorithm>

#include "schedule/algorithms.h"

namespace tutti {
namespace {

// One lane of a rank; every function appends its steps. Chunks are whole blocks, except in two shots.
struct Direct {
  int n, rank;
  Steps steps = {};

  explicit Direct(const Ranks& r) : n(r.n()), rank(r.rank) {}
  Direct(int n_ranks, int of_rank) : n(n_ranks), rank(of_rank) {}

  static Slice in(int chunk) { return input_of(static_cast<uint32_t>(chunk)); }
  static Slice out(int chunk) { return output_of(static_cast<uint32_t>(chunk)); }
  // Rotated, so that in their k-th steps all ranks send to different receivers.
  int receiver(int k) const { return (rank + k) % n; }
  int sender(int k) const { return (rank - k + n) % n; }

  void add(int chunk, Step step) {
    step.chunk = static_cast<uint32_t>(chunk);
    steps.push_back(step);
  }
  // Stores ((0 + 1) + 2) + ... in `to`; this rank's part is in `from`.
  void fold(int chunk, Slice from, Slice to, int send = -1) {
    add(chunk, {.recv = n > 1 ? kEveryone : -1, .send = send, .local = from, .store = to, .completes = true});
  }
  // Sends this rank's input to all, and reads it once for both the first receiver and `to`: 2 ranks broadcast 16 MiB in
  // 1.2 ms instead of 1.8.
  void send_to_all(int chunk, Slice to) {
    if (n == 1) add(chunk, {.local = in(0), .store = to});
    for (int k = 1; k < n; k++)
      add(chunk, {.send = receiver(k), .local = k == 1 ? in(0) : to, .store = k == 1 ? to : Slice{}});
  }
  Schedule schedule(bool may_expose = true) const {
    return with_lane({.rank = rank, .n_ranks = n, .n_chunks = 1, .may_expose = may_expose}, steps);
  }
};

Schedule one_shot_all_reduce(const Ranks& r) {
  Direct d(r);
  for (int k = 1; k < d.n; k++) d.add(0, {.send = d.receiver(k), .local = d.in(0)});
  d.fold(0, d.in(0), d.out(0));
  return d.schedule(false);  // in place, the sum overwrites what others may still be adding up
}

//   in[0] in[1] in[2]      rank 0: 0*     --> all       Chunks go in groups of n; rank r adds up the group's r-th one
//     |     |     |        rank 1:    1*  --> all       and sends the sum to everybody.
//     v     v     v        rank 2:      2* -> all
//   rank 0  rank 1  rank 2
// With a root, the sums go to the root only. A group may have fewer than n chunks.
void add_group(Direct& d, int group, int n_chunks, int root) {
  const int first = group * d.n, own = first + d.rank;
  const bool has_own = own < n_chunks, to_all = root < 0, keeps = to_all || d.rank == root;
  for (int k = 1; k < d.n; k++)
    if (const int chunk = first + d.receiver(k); chunk < n_chunks)
      d.add(chunk, {.send = d.receiver(k), .local = d.in(chunk)});
  if (has_own)
    d.fold(own, d.in(own), keeps ? d.out(own) : Slice{}, !keeps ? root : to_all && d.n > 1 ? d.receiver(1) : -1);
  for (int k = 2; k < d.n && has_own && to_all; k++) d.add(own, {.send = d.receiver(k), .local = d.out(own)});
  for (int k = 1; k < d.n && keeps; k++)
    if (const int chunk = first + d.sender(k); chunk < n_chunks)
      d.add(chunk, {.recv = d.sender(k), .store = d.out(chunk)});
}

Schedule two_shot_all_reduce(const Ranks& r) {
  return two_shots(r, static_cast<uint32_t>(r.n()) * r.lanes);
}

Schedule direct_reduce_scatter(const Ranks& r) {
  Direct d(r);
  for (int k = 1; k < d.n; k++) d.add(d.receiver(k), {.send = d.receiver(k), .local = d.in(d.receiver(k))});
  d.fold(d.rank, d.in(d.rank), d.out(0));
  return d.schedule();
}

Schedule one_shot_reduce(const Ranks& r) {
  Direct d(r);
  if (d.rank == r.root)
    d.fold(0, d.in(0), d.out(0));
  else
    d.add(0, {.send = r.root, .local = d.in(0)});
  return d.schedule();
}

Schedule direct_reduce(const Ranks& r) {
  return r.n() > 2 ? two_shots(r, static_cast<uint32_t>(r.n()), r.root) : one_shot_reduce(r);
}

Schedule direct_broadcast(const Ranks& r) {
  Direct d(r);
  if (d.rank == r.root)
    d.send_to_all(0, d.out(0));
  else
    d.add(0, {.recv = r.root, .store = d.out(0)});
  return d.schedule();
}

Schedule direct_all_gather(const Ranks& r) {
  Direct d(r);
  d.send_to_all(d.rank, d.out(d.rank));
  for (int k = 1; k < d.n; k++) d.add(d.sender(k), {.recv = d.sender(k), .store = d.out(d.sender(k))});
  return d.schedule();
}

// Over shared memory a rank copies to each rank only its part of the input, and exposes the parts instead where the
// input is registered. Between two ranks that took .91 to 1.12 of the one-shot's time from 40 KiB to 70 MB, and .35 to
// .75 of it from registered memory, which the planner cannot know about.
Cost parts_cost(const Workload& b) {
  const double part = b.bytes / b.n;
  Cost e = b.hops(2 * b.rounds(part), 2 * b.rounds(part));
  b.with_all(e, 4 * b.messages_for(part, 1), b.moves_of_sum() * part);
  e.summed = b.each(b.bytes);
  e.out = b.incast() * 2 * b.here * b.elsewhere() * part;
  return e;
}

// Over sockets, 2 ranks took 83 to 92 us for 256 KiB, where a ring took 52 to 64, but 15 for 64 KiB, a ring 19.
Cost one_shot_cost(const Workload& b) {
  Cost e = b.hops(waits_for_all(b) * b.rounds(b.bytes), b.rounds(b.bytes));
  b.with_all(e, 2 * b.messages_for(b.bytes, 1), (b.shares_memory ? 1.15 : 1.25) * b.bytes);
  e.summed = b.each(b.n * b.bytes);
  e.out = b.incast() * b.here * b.elsewhere() * b.bytes;
  return e;
}

Cost two_shot_reduce_cost(const Workload& b) {
  const double part = b.bytes / b.n, messages = b.messages_for(part, 1), all = (2 * b.others() + 2) * b.n;
  Cost e = b.hops(2 * b.rounds(part), 2 * b.rounds(part));
  b.with_one(e, {3 * b.others() * messages, all * messages}, {3 * b.others() * part, all * part});
  e.summed = b.each(b.bytes);
  e.out = (b.here + 1) * b.elsewhere() * part;  // received by the root's host
  return e;
}

// In one chunk. With two, the receiver could empty one slot while the sender still fills the next, but from 4 KiB to
// 16 MiB that took as long, and at 4 KiB 1.4 times as long (2 ranks, shared memory).
Cost direct_cost(const Workload& b) {
  const double messages = b.messages_for(b.bytes, 1);
  // A socket takes the root's last chunk only when it has taken the others.
  const double last_chunk = b.sums || b.shares_memory ? 0 : b.bytes / messages;
  // Whenever a root that does half of all the work does not run, all others wait: 4 and 8 ranks on 2 CPUs broadcast
  // 1 KiB to 16 MiB in 1.1 to 1.6 times a ring's time, and reduce 256 KiB in 1.02 to 1.27 times that of two shots.
  // Over sockets, 4 ranks reduce 32 KiB in 21 to 24 us, and in 15 with a ring.
  const double root_waits = b.n == 2 ? 1 : !b.shares_memory ? (b.sums ? 1.15 : 1) : b.sums ? 1.2 : 1.5;
  const Work moved{root_waits * b.others() * b.bytes + last_chunk, 2 * b.others() * b.bytes};
  Cost e = b.hops(kPassedOn * b.rounds(b.bytes), kPassedOn * b.rounds(b.bytes));
  // Sending over a socket includes most of the receiver's work: back to back, 64 B to 7 ranks on one host take 31 us.
  const double at_root_each = b.shares_memory ? 1 : b.sums ? 0.5 : 2, each = b.sums ? b.incast() * messages : messages;
  b.with_one(e, {at_root_each * b.others() * each, 2 * b.others() * each}, moved);
  if (b.sums) e.summed = {b.n * b.bytes, 2 * b.others() * b.bytes};
  e.out = b.elsewhere() * b.bytes;
  return e;
}

// Each rank has a block for each of the others, or gets one from each.
Cost direct_blocks_cost(const Workload& b) {
  Cost e = b.hops(b.rounds(b.bytes), b.rounds(b.bytes));
  // A sum reads messages in their slots; many sockets at once take 1.25 times what one does, or 1.15 where sums follow.
  b.with_all(e, 2 * b.messages_for(b.bytes, 1), (b.shares_memory ? 2 - b.sums : b.sums ? 2.3 : 2.5) * b.bytes);
  if (b.sums) e.summed = b.each(b.n * b.bytes);
  e.out = b.here * b.elsewhere() * b.bytes * b.incast();
  return e;
}

// The blocks sent to, or received from, `peer`, in order.
std::vector<uint32_t> blocks_with(const std::vector<int>& peers, int peer) {
  std::vector<uint32_t> blocks;
  for (uint32_t block = 0; block < peers.size(); block++)
    if (peers[block] == peer) blocks.push_back(block);
  return blocks;
}

}  // namespace

// Each group has its own lane and channel.
Schedule two_shots(const Ranks& r, uint32_t n_chunks, int root) {
  Schedule schedule{.rank = r.rank, .n_ranks = r.n(), .n_chunks = n_chunks};
  for (uint32_t group = 0; group * static_cast<uint32_t>(r.n()) < n_chunks; group++) {
    Direct d(r);
    add_group(d, static_cast<int>(group), static_cast<int>(n_chunks), root);
    schedule.add_lane(group, std::move(d.steps));
  }
  return schedule;
}

Schedule all_to_all(int n_ranks, int rank) {
  Direct d(n_ranks, rank);
  d.add(rank * n_ranks + rank, {.local = d.in(rank), .store = d.out(rank)});
  for (int k = 1; k < d.n; k++)
    d.add(rank * n_ranks + d.receiver(k), {.send = d.receiver(k), .local = d.in(d.receiver(k))});
  for (int k = 1; k < d.n; k++) d.add(d.sender(k) * n_ranks + rank, {.recv = d.sender(k), .store = d.out(d.sender(k))});
  return d.schedule();
}

Schedule gather(int n_ranks, int rank, int root) {
  Direct d(n_ranks, rank);
  d.add(rank, {.send = rank == root ? -1 : root, .local = d.in(0), .store = rank == root ? d.out(root) : Slice{}});
  for (int k = 1; k < d.n && rank == root; k++)
    d.add(d.receiver(k), {.recv = d.receiver(k), .store = d.out(d.receiver(k))});
  return d.schedule();
}

Schedule scatter(int n_ranks, int rank, int root) {
  Direct d(n_ranks, rank);
  for (int k = 1; k < d.n && rank == root; k++)
    d.add(d.receiver(k), {.send = d.receiver(k), .local = d.in(d.receiver(k))});
  d.add(rank, {.recv = rank == root ? -1 : root, .local = rank == root ? d.in(root) : Slice{}, .store = d.out(0)});
  return d.schedule();
}

Schedule send_recv(int n_ranks, int rank, const Transfers& transfers) {
  Schedule schedule{.rank = rank, .n_ranks = n_ranks, .n_chunks = 1};
  const auto n_sends = static_cast<uint32_t>(transfers.sends.size());
  for (int step = 1; step <= n_ranks; step++) {  // ranks begin with different peers, and end with themselves
    const int peer = (rank + step) % n_ranks;
    const std::vector<uint32_t> sends = blocks_with(transfers.sends, peer);
    const std::vector<uint32_t> receives = blocks_with(transfers.receives, peer);
    Steps out, in;
    for (size_t i = 0; peer == rank && i < std::min(sends.size(), receives.size()); i++)
      out.push_back({.chunk = sends[i], .local = input_of(sends[i]), .store = output_of(receives[i])});
    if (peer != rank) {
      for (const uint32_t block : sends) out.push_back({.send = peer, .chunk = block, .local = input_of(block)});
      for (const uint32_t block : receives)
        in.push_back({.recv = peer, .chunk = n_sends + block, .store = output_of(block)});
    }
    schedule.add_lane(0, std::move(out));
    schedule.add_lane(0, std::move(in));
  }
  return schedule;
}

extern const Algorithm kDirect = {
    .name = "direct",
    .all_reduce = {two_shot_all_reduce, parts_cost, true},
    .broadcast = {direct_broadcast, direct_cost},
    .reduce = {direct_reduce, [](const Workload& b) { return b.n > 2 ? two_shot_reduce_cost(b) : direct_cost(b); }},
    .all_gather = {direct_all_gather, direct_blocks_cost},
    .reduce_scatter = {direct_reduce_scatter, direct_blocks_cost},
    .keeps_rank_order = true,
    .meets_all = true,
};
extern const Algorithm kOneShot = {.name = "oneshot",
                                   .all_reduce = {one_shot_all_reduce, one_shot_cost},
                                   .reduce = {one_shot_reduce, direct_cost},
                                   .otherwise = Algo::kDirect,
                                   .keeps_rank_order = true,
                                   .meets_all = true};

}  // namespace tutti
