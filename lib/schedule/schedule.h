// schedule: a collective as data. A Schedule says which chunks one rank receives, reduces, stores and sends, in which
// order. Builders are pure functions; the checker proves a set of schedules (one per rank) correct. Everything here is
// plain values, includes base only, knows no bytes, no links and no clocks, and is safe from any thread.
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

// The symmetry that a builder claims for its schedules: rank r + k * period does what rank r does, with all ranks moved
// by k * period and all chunks moved k times. Whoever relies on the claim proves it first: see alike.h.
struct Alike {
  int period = 0;  // 0: no symmetry claimed
  Walk walk;
  bool operator==(const Alike&) const = default;
};

struct Schedule {
  int rank = 0;
  int n_ranks = 1;
  uint32_t n_chunks = 0;   // of one block
  uint32_t n_scratch = 0;  // scratch chunks needed; each has room for the largest chunk
  // A slice of the input or output that a step sends unchanged, or of the output that it also stores in, is not
  // overwritten before the message is received, even in place. So the receiver may read the data there.
  bool may_expose = true;
  Alike alike;
  std::vector<Lane> lanes;

  // Ignores a lane without steps.
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

// ---- builders of collectives with one algorithm only; all others are rows in algorithms.cpp. One slot is enough.

// The k-th message goes to rank + k and the k-th receive is from rank - k, so no two messages meet at one receiver.
Schedule all_to_all(int n_ranks, int rank);
Schedule gather(int n_ranks, int rank, int root);
Schedule scatter(int n_ranks, int rank, int root);

// Dissemination: after the k-th of log2 n messages each rank knows of 2^k ranks. No buffers: messages are empty.
Schedule barrier(int n_ranks, int rank);

// Point-to-point messages, listed by peer and each sent as a whole: the k-th send takes the k-th block of the input,
// the k-th receive fills the k-th block of the output.
struct Transfers {
  std::vector<int> sends, receives;
};
// One lane per peer and direction, in which messages keep the order of the lists; a rank's k-th send to itself is
// copied to its k-th receive from itself.
Schedule send_recv(int n_ranks, int rank, const Transfers& transfers);

// ---- checker, which is not in libtutti.so --------------------------------------------------------------------------

using Goal = Collective;  // what the schedules must do: any from kAllReduce to kSendRecv

struct CheckOptions {
  Goal goal = Goal::kAllReduce;
  int root = 0;         // of a broadcast, reduce, gather, scatter
  uint32_t slots = 2;   // of every link
  uint32_t rounds = 1;  // the schedule is run this many times back to back, as for a large buffer
  // Input and output share memory where they hold the same data: an all-gather's input is the rank's own block of the
  // output, a reduce-scatter's output that of the input; likewise for the root in gather and scatter.
  bool in_place = false;
  bool rank_order = false;               // sums must be ((rank 0 + rank 1) + rank 2) + ...
  std::span<const Transfers> transfers;  // what the ranks send and receive, one per rank, for kSendRecv only
};

// Runs the schedules of all ranks (schedules[r].rank == r) with real slot credits and proves: no deadlock, every output
// chunk of every rank has every contribution that it should exactly once, all ranks of an all-reduce add in the same
// order (so their results are the same bits), no slice is read before it is written or outside its buffer, every
// message that is sent is received with the chunk the receiver expects, all lanes keep to their own links, lanes that
// use the same slice are ordered by messages, `completes` is set where the sum is complete and nowhere else, nothing
// that may be exposed is overwritten too early, and no rank leaves a barrier before all have entered it. An error names
// the rank, lane and step; a deadlock's shows the state of all lanes.
Result<void> check(std::span<const Schedule> schedules, const CheckOptions& options);

// For people: "recv 1 + in[2] -> out[2], send 3".
std::string slice_text(const Slice& slice);
std::string step_text(const Step& step);

}  // namespace tutti
