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

// ---- builders of what is done in one way only; all others are rows of algorithms.h. One slot is enough.

// The k-th message goes to rank + k, the k-th one comes from rank - k: no two meet at one receiver.
Schedule all_to_all(int n_ranks, int rank);
Schedule gather(int n_ranks, int rank, int root);
Schedule scatter(int n_ranks, int rank, int root);

// Dissemination: after the k-th of log2 n messages everybody knows of 2^k ranks. No buffers: messages are empty.
Schedule barrier(int n_ranks, int rank);

// Point-to-point messages, each of them whole, by their peers: the k-th send is of the k-th block of the input, the
// k-th receive is stored in the k-th block of the output.
struct Transfers {
  std::vector<int> sends, receives;
};
// One lane per peer and direction, in which messages keep the order of the lists; the k-th send to itself is copied to
// the k-th receive from itself.
Schedule send_recv(int n_ranks, int rank, const Transfers& transfers);

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
