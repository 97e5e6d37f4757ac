// schedule: a collective as data. A Schedule says, for one rank, which chunk it receives, reduces, stores and sends in
// which order. Builders are pure functions; the checker proves a set of schedules (one per rank) right. Everything here
// is plain values, includes base only, knows no bytes, no links and no clocks, and is safe from any thread.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "schedule/steps.h"

namespace tutti {

// Steps that run strictly in order. Lanes of one rank run concurrently and interleave freely. A link is identified by
// (peer, direction, channel), and all its messages belong to one lane, so the order on a link is the order of steps.
// Two lanes of a rank may have the same channel if they share no peer in the same direction.
struct Lane {
  uint32_t channel = 0;
  Steps steps;
};

// How a schedule resembles those of other ranks, as its builder thinks: rank r + k * period does what rank r does, with
// all ranks moved alike and all chunks moved k times. Whoever relies on it proves it first: see alike.h.
struct Alike {
  int period = 0;  // 0: in no way
  Walk walk;
  bool operator==(const Alike&) const = default;
};

struct Schedule {
  int rank = 0;
  int n_ranks = 1;
  uint32_t n_chunks = 0;   // of one block
  uint32_t n_scratch = 0;  // scratch chunks needed; each has room for the largest chunk
  // 0 where this rank has no such buffer: only the root of a broadcast has an input, only that of a reduce an output.
  uint32_t input_blocks = 1;
  uint32_t output_blocks = 1;
  // What a step sends as it is from the input or output, or also stores in the output, is not overwritten before its
  // message is received, not even in place. So the receiver may read it where it lies.
  bool may_expose = true;
  Alike alike;
  std::vector<Lane> lanes;

  // But for one without steps.
  void add_lane(uint32_t channel, Steps steps) {
    if (!steps.empty()) lanes.push_back({channel, std::move(steps)});
  }
};

// Calls visit(rank) for every rank that the step receives from, in order.
template <class Visit>
void for_each_sender(const Schedule& schedule, const Step& step, Visit&& visit) {
  if (step.recv >= 0) visit(step.recv);
  for (int peer = 0; step.recv == kEveryone && peer < schedule.n_ranks; peer++)
    if (peer != schedule.rank) visit(peer);
}

// A message that a lane only stores in the output: whoever sends it may write it there, from when the lane comes to the
// step `from` on. Earlier its like from the same rank is on its way, `ahead` more messages come from there before it.
struct Placeable {
  uint32_t step = 0, from = 0, ahead = 0;
};
std::vector<Placeable> placeable_messages(std::span<const Step> steps);

// ---- builders: `n_chunks` is how many chunks a block is cut into, at least 1; any number works, and any number of
// ranks. `ring` and `order` list the ranks as they stand beside each other. "Slots" are the fewest a link may have.

// Rings. Chunk c of an all-reduce is reduced along the ring and ends at the position c % n. `n_lanes` rings run side by
// side, on channels 0 .. n_lanes-1, each with its own groups of n chunks. Two slots.
Schedule ring_all_reduce(std::span<const int> ring, int rank, uint32_t n_chunks, uint32_t n_lanes);
Schedule ring_reduce_scatter(std::span<const int> ring, int rank, uint32_t n_chunks, uint32_t n_lanes);
Schedule ring_all_gather(std::span<const int> ring, int rank, uint32_t n_chunks, uint32_t n_lanes);

// For ranks on several hosts: every host adds up its ranks' data, the k-th ranks of all hosts make an all-reduce of the
// k-th parts between them, every host passes the results round. Between two hosts travels half of what a ring of all
// ranks sends there. `hosts`: the ranks of each, any numbers of them. Lanes as a ring's; wants as many chunks for each
// lane as there are hosts times ranks on the largest one. Two slots.
Schedule hierarchical_all_reduce(std::span<const std::vector<int>> hosts, int rank, uint32_t n_chunks,
                                 uint32_t n_lanes);

// Pipelined chains along the ring, from `root` all round or all round to `root`. One slot.
Schedule ring_broadcast(std::span<const int> ring, int rank, int root, uint32_t n_chunks, uint32_t n_lanes);
Schedule ring_reduce(std::span<const int> ring, int rank, int root, uint32_t n_chunks, uint32_t n_lanes);

// Double binary tree: two trees over the same `order` of ranks, every rank is inner node in at most one of them; even
// chunks go through the first (channel 0), odd ones through the second (channel 1). Reduction up and broadcast down are
// lanes of their own, so one slot is enough. With a root the two trees span all ranks but the root, which stands above
// both. The ranks of `slow` hosts, which are in `order` too, are below all others, so that their hosts send no more
// than all elements once.
Schedule tree_all_reduce(std::span<const int> order, int rank, uint32_t n_chunks,
                         std::span<const std::vector<int>> slow = {});
Schedule tree_broadcast(std::span<const int> order, int rank, int root, uint32_t n_chunks,
                        std::span<const std::vector<int>> slow = {});
Schedule tree_reduce(std::span<const int> order, int rank, int root, uint32_t n_chunks,
                     std::span<const std::vector<int>> slow = {});

// Logarithmic depth, messages to O(log n) peers. `window`: how many messages a rank sends in an exchange before it
// waits for the first one of its peer; more hide more of the hops. `window` slots.
// Over circulant graphs, with any number of ranks in ceil(log2 n) exchanges. Reduce-scatter holds partial sums in
// scratch: n / 2 chunks at most.
Schedule circulant_all_gather(std::span<const int> order, int rank, uint32_t n_chunks, uint32_t window);
Schedule circulant_reduce_scatter(std::span<const int> order, int rank, uint32_t n_chunks, uint32_t window);
// The two one after the other: a ring's traffic in logarithmic depth. Wants at least n chunks. `window` slots.
Schedule circulant_all_reduce(std::span<const int> order, int rank, uint32_t n_chunks, uint32_t window);
// Recursive doubling of whole chunks, for small messages. One slot.
Schedule doubling_all_reduce(std::span<const int> order, int rank, uint32_t n_chunks);

// Everybody to everybody directly: one or two hops, links between all pairs. Sums are added up at one place, in one
// step and strictly in the order of ranks, whatever the chunks: they are rounded once. One slot, but for the two-shot
// all-reduce's two. One-shot: everybody gets all inputs and adds them up. Two-shot: chunk c at rank c % n, which sends
// the sum to all, or to the root; groups of n chunks are dealt out among `n_lanes`, on channels 0 .. n_lanes-1.
Schedule one_shot_all_reduce(int n_ranks, int rank, uint32_t n_chunks);
Schedule two_shot_all_reduce(int n_ranks, int rank, uint32_t n_chunks, uint32_t n_lanes);
Schedule direct_reduce_scatter(int n_ranks, int rank, uint32_t n_chunks);
Schedule direct_reduce(int n_ranks, int rank, int root, uint32_t n_chunks);
Schedule two_shot_reduce(int n_ranks, int rank, int root, uint32_t n_chunks);
Schedule direct_all_gather(int n_ranks, int rank, uint32_t n_chunks);
Schedule direct_broadcast(int n_ranks, int rank, int root, uint32_t n_chunks);
// From rank to rank in their order, which the sum is made in, and back; to the root at once. Two neighbours, and two
// hops for each rank. One slot.
Schedule chain_all_reduce(int n_ranks, int rank, uint32_t n_chunks);
Schedule chain_reduce(int n_ranks, int rank, int root, uint32_t n_chunks);
Schedule chain_reduce_scatter(int n_ranks, int rank, uint32_t n_chunks);
// The k-th message goes to rank + k, the k-th one comes from rank - k: no two meet at one receiver. One slot.
Schedule all_to_all(int n_ranks, int rank, uint32_t n_chunks);
Schedule gather(int n_ranks, int rank, int root, uint32_t n_chunks);
Schedule scatter(int n_ranks, int rank, int root, uint32_t n_chunks);

// Dissemination: after the k-th of log2 n messages everybody knows of 2^k ranks. No buffers: messages are empty. One
// slot.
Schedule barrier(int n_ranks, int rank);

// One point-to-point message, whole: `block` is the sender's input block or the receiver's output block.
struct Transfer {
  int peer = 0;
  uint32_t block = 0;
};
struct Transfers {
  std::vector<Transfer> sends, receives;
};

// Point to point: one lane per peer and direction, in which messages keep the order of the lists; the k-th send to
// itself is copied to the k-th receive from itself. Receives' blocks must be 0 .. their number - 1. One slot.
Schedule send_recv(int n_ranks, int rank, const Transfers& transfers, uint32_t n_chunks);

// ---- checker -------------------------------------------------------------------------------------------------------

using Goal = Collective;  // that schedules are to do: any from kAllReduce to kSendRecv

struct CheckOptions {
  Goal goal = Goal::kAllReduce;
  int root = 0;         // of a broadcast, reduce, gather, scatter
  uint32_t slots = 2;   // of every link
  uint32_t rounds = 1;  // the schedule is run this many times back to back, as for a large buffer
  // Input and output are the same memory, as far as they are the same data: all-gather's input is the output's own
  // block, reduce-scatter's output the input's own, so are the root's in gather and scatter.
  bool in_place = false;
  bool rank_order = false;               // sums must be ((rank 0 + rank 1) + rank 2) + ...
  std::span<const Transfers> transfers;  // what the ranks send and receive, one per rank, for kSendRecv alone
};

// Runs the schedules of all ranks (schedules[r].rank == r) with real slot credits and proves: no deadlock, every output
// chunk of every rank has every contribution that it should exactly once, all ranks of an all-reduce add in the same
// order (so their results are the same bits), no slice is read before it is written or outside its buffer, every
// message that is sent is received with the chunk the receiver expects, all lanes keep to their own links, lanes that
// use the same slice are kept in order by messages, `completes` is where the sum is complete and nowhere else, nothing
// that may be exposed is overwritten too early, and no rank leaves a barrier before all have entered it. An error says
// which rank, lane and step, and draws the state of all lanes when it is a deadlock.
Result<void> check(std::span<const Schedule> schedules, const CheckOptions& options);

// A table of one rank's steps for people: "lane 0 step 3: recv 1 + in[2] -> out[2], send 3".
std::string to_text(const Schedule& schedule);

}  // namespace tutti
