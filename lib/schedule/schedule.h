// schedule: a collective as data. A Schedule says, for one rank, which chunk it receives, reduces, stores and sends in
// which order. Builders are pure functions; the checker proves a set of schedules (one per rank) right. Everything here
// is plain values, includes base only, knows no bytes, no links and no clocks, and is safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace tutti {

enum class Buffer : uint8_t { kNone = 0, kInput = 1, kOutput = 2, kScratch = 3 };

// A chunk's index within a buffer; how many elements a chunk has is the executor's business.
struct Slice {
  Buffer buffer = Buffer::kNone;
  uint32_t chunk = 0;
};

// NCCL's fused primitive, in this order, all parts optional:
//   value = (message received from rank `recv`) + (slice `local`);   "+" is the reduction
//   keep value in slice `store`;   send value to rank `send`
// Without `recv` the value is `local` alone; without `local` it is the message alone.
struct Step {
  int32_t recv = -1;
  int32_t send = -1;
  Slice local;
  Slice store;
  // This reduction completes the sum over all ranks: the executor divides here for an average. Exactly one step of all
  // ranks carries it per chunk of a reducing collective.
  bool completes = false;
};

// Steps that run strictly in order. Lanes of one rank run concurrently and interleave freely. A link is identified by
// (peer, direction, channel), and all its messages belong to one lane, so the order on a link is the order of steps.
// Two lanes of a rank may have the same channel if they share no peer in the same direction.
struct Lane {
  uint32_t channel = 0;
  std::vector<Step> steps;
};

struct Schedule {
  int rank = 0;
  int n_ranks = 1;
  uint32_t n_chunks = 0;   // of input and output alike
  uint32_t n_scratch = 0;  // scratch chunks needed
  std::vector<Lane> lanes;
};

// ---- builders: `n_chunks` is how many chunks the buffer is cut into, at least 1; any number works ------------------

// Ring reduce-scatter then all-gather. `ring` lists the ranks in ring order. Chunk c is reduced along the ring and ends
// at the position c % n. `n_lanes` rings run side by side, on channels 0 .. n_lanes-1, each with its own groups of n
// chunks. Needs two slots.
Schedule ring_all_reduce(std::span<const int> ring, int rank, uint32_t n_chunks, uint32_t n_lanes);

// Pipelined chain along the ring, starting at `root`. Needs one slot.
Schedule ring_broadcast(std::span<const int> ring, int rank, int root, uint32_t n_chunks, uint32_t n_lanes);

// Double binary tree: two trees over the same `order` of ranks, every rank is inner node in at most one of them; even
// chunks go through the first (channel 0), odd ones through the second (channel 1). Reduction up and broadcast down are
// lanes of their own, so one slot is enough. In a broadcast the two trees span all ranks but the root, which feeds
// both.
Schedule tree_all_reduce(std::span<const int> order, int rank, uint32_t n_chunks);
Schedule tree_broadcast(std::span<const int> order, int rank, int root, uint32_t n_chunks);

// ---- checker -------------------------------------------------------------------------------------------------------

enum class Goal : uint8_t { kAllReduce, kBroadcast };

struct CheckOptions {
  Goal goal = Goal::kAllReduce;
  int root = 0;           // of a broadcast
  uint32_t slots = 2;     // of every link
  uint32_t rounds = 1;    // the schedule is run this many times back to back, as for a large buffer
  bool in_place = false;  // input and output are the same memory
};

// Runs the schedules of all ranks (schedules[r].rank == r) with real slot credits and proves: no deadlock, every output
// chunk of every rank has every contribution exactly once (broadcast: the root's, exactly), no slice is read before it
// is written or outside its buffer, every message that is sent is received with the chunk the receiver expects, all
// lanes keep to their own links, lanes that use the same slice are kept in order by messages, `completes` is where the
// sum is complete and nowhere else. An error says which rank, lane and step, and draws the state of all lanes when it
// is a deadlock.
Result<void> check(std::span<const Schedule> schedules, const CheckOptions& options);

// A table of one rank's steps for people: "lane 0 step 3: recv 1 + in[2] -> out[2], send 3".
std::string to_text(const Schedule& schedule);

}  // namespace tutti
