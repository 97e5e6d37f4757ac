// exec: carries a schedule out on host memory. A Program is a schedule whose steps know their links; a Run moves one
// operation's data through it, lane by lane, without blocking; drive() runs it to the end and does the waiting.
// Threading: a Program, its links and its Run belong to one thread at a time. A Run allocates nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "debug/call.h"
#include "kernels/kernels.h"
#include "schedule/schedule.h"
#include "transports/transport.h"

namespace tutti {

struct BoundStep {
  Link* recv = nullptr;
  Link* send = nullptr;
  Slice local;
  Slice store;
  bool completes = false;
};

struct BoundLane {
  std::vector<BoundStep> steps;
  // Where the running operation is.
  uint64_t round = 0;
  size_t next = 0;
};

struct Program {
  std::vector<BoundLane> lanes;
  std::vector<Link*> sends;  // every link that some step sends on
  uint32_t n_chunks = 1;
  uint32_t slot_bytes = 0;
};

// Resolves a schedule's links. find_link(peer, channel, sending) must know all of them.
template <class FindLink>
Program bind(const Schedule& schedule, uint32_t slot_bytes, FindLink&& find_link);

// How an operation of `elems` elements is laid over the chunks of a schedule that runs for several rounds: chunk c of
// round r starts at element (r * n_chunks + c) * chunk_elems. Chunks beyond the end are empty, and their messages too.
struct ChunkLayout {
  uint64_t chunk_elems = 0;
  uint64_t rounds = 1;

  static ChunkLayout of(uint64_t elems, size_t elem_bytes, uint32_t n_chunks, uint32_t slot_bytes);
};

class Run {
 public:
  enum class Poll { kIdle, kProgress, kDone, kFailed };

  struct Operation {
    Call call;
    uint64_t elems = 0;  // call.count, or 0 when only the tags are to travel
    const void* input = nullptr;
    void* output = nullptr;
    int rank = 0;
    int n_ranks = 1;
    uint64_t stream_from_bytes = 0;  // results of at least this size are written past the cache
  };
  Run(Program& program, const Operation& operation, const History& history);

  // Does what can be done now. kIdle: every lane waits for a peer.
  Poll advance();
  const Error& error() const { return error_; }

  // The idle path: asks every link that a lane waits for whether it is still well. False if one failed.
  bool poll_links();
  // Before sleeping: adds what to sleep on and which links to tell of the waking (wait_end), in any case; false if
  // something can go on already.
  struct Sleeper {
    Link* link;
    tuttiWait wait;
  };
  bool prepare_sleep(std::vector<Sleeper>* sleepers);
  // "rank 3 (to receive), rank 1 (to take a message)": whom the lanes wait for.
  std::string waits_for() const;
  // A message of a different call that has arrived on `link` (one that this operation does not use, perhaps).
  bool check_stray(Link& link);

 private:
  bool advance_lane(BoundLane& lane);
  bool execute(const BoundStep& step, uint64_t round);
  void compute(const BoundStep& step, uint64_t round, const void* received, void* to_send, uint64_t elems);
  bool accept_message(const Link& link, const tuttiMessage& message, uint64_t expected_bytes);
  uint64_t chunk_elems(uint64_t round, uint32_t chunk) const;
  char* address(const Slice& slice, uint64_t round) const;
  bool all_sent();
  template <class Visit>
  bool for_each_blocked(Visit&& visit) const;

  Program& program_;
  const Operation& operation_;
  const History& history_;
  TagWords tag_;
  size_t elem_bytes_;
  ChunkLayout layout_;
  ReduceKernel reduce_;
  CopyKernel copy_;
  bool stream_;
  size_t lanes_left_;
  Error error_;
};

template <class FindLink>
Program bind(const Schedule& schedule, uint32_t slot_bytes, FindLink&& find_link) {
  Program program;
  program.n_chunks = schedule.n_chunks;
  program.slot_bytes = slot_bytes;
  for (const Lane& lane : schedule.lanes) {
    BoundLane bound;
    for (const Step& step : lane.steps) {
      BoundStep b{nullptr, nullptr, step.local, step.store, step.completes};
      if (step.recv >= 0) b.recv = find_link(step.recv, lane.channel, false);
      if (step.send >= 0) b.send = find_link(step.send, lane.channel, true);
      if (b.send != nullptr && std::find(program.sends.begin(), program.sends.end(), b.send) == program.sends.end())
        program.sends.push_back(b.send);
      bound.steps.push_back(b);
    }
    if (!bound.steps.empty()) program.lanes.push_back(std::move(bound));
  }
  return program;
}

}  // namespace tutti
