// exec: carries a schedule out on host memory. A Program is a schedule whose steps know their links; a Run moves one
// operation's data through it, lane by lane, without blocking; drive() runs it to the end and does the waiting.
// Threading: a Program, its links and its Run belong to one thread at a time. A Run allocates nothing, but for room
// that its program keeps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "debug/recorder.h"
#include "exec/chunks.h"
#include "kernels/kernels.h"
#include "schedule/schedule.h"
#include "transports/transport.h"

namespace tutti {

struct BoundStep {
  std::vector<Link*> recvs;  // none, one, or one from every other rank
  Link* send = nullptr;
  PlacedSlice size;  // the logical block and chunk that decide how many elements the value has
  PlacedSlice before, local, store;
  uint32_t local_place = 0;  // how many of the messages stand left of `local` in the sum
  bool completes = false;
  std::vector<Placeable> expects;  // messages of later steps whose places are told when the lane comes to this one
};

struct BoundLane {
  std::vector<BoundStep> steps;
  // Where the running operation is.
  uint64_t round = 0;
  size_t next = 0;
  bool told = false;       // the links of the places that the next step expects messages at
  bool expecting = false;  // its next step has told the link where the message ought to go, or waits to be told

  bool done() const { return next == steps.size(); }
};

struct Program {
  std::vector<BoundLane> lanes;
  std::vector<Link*> sends;  // every link that some step sends on
  uint32_t n_chunks = 1;     // of a block
  MessageSizes sizes;
  std::vector<char> scratch;  // chunks of slot_bytes
  bool may_lend = false;
  // Room for what a step works on: its messages, its sources, pieces that are scaled (made when needed).
  std::vector<tuttiMessage> messages;
  std::vector<const void*> src;
  std::vector<char> rooms;
  // Each step runs for all its rounds before the next one begins, and its block alone says how many: for messages that
  // have nothing to do with each other. Else the lane as a whole is repeated.
  bool step_by_step = false;
  // The buffers are registered memory of a device: messages are delivered, nothing is computed, all counts are bytes.
  bool on_device = false;
};

// Resolves a schedule's links. find_link(peer, channel, sending) must know all of them.
template <class FindLink>
Program bind(const Schedule& schedule, MessageSizes sizes, FindLink&& find_link);

// The blocks of an operation, in elements: all of one size, or looked up.
struct Blocks {
  uint64_t uniform_elems = 0;
  std::span<const uint64_t> elems;                // by logical block; empty: uniform
  std::span<const uint64_t> input_at, output_at;  // where a buffer's blocks begin; empty: block * uniform_elems

  uint64_t size(uint32_t block) const { return elems.empty() ? uniform_elems : elems[block]; }
  uint64_t largest() const { return elems.empty() ? uniform_elems : *std::max_element(elems.begin(), elems.end()); }
  uint64_t begin(Buffer buffer, uint32_t block) const {
    const auto& at = buffer == Buffer::kInput ? input_at : output_at;
    return at.empty() ? block * uniform_elems : at[block];
  }
};

// Smaller values are copied into the slot: cheaper than to make the sender wait until they are read.
inline constexpr uint64_t kLendFromBytes = 16 << 10;

class Run {
 public:
  enum class Poll { kIdle, kProgress, kDone, kFailed };

  struct Operation {
    Call call;
    Blocks blocks;                   // empty when only the tags are to travel
    std::span<const TagWords> tags;  // by logical block, where each message is a call of its own
    const void* input = nullptr;
    void* output = nullptr;
    int rank = 0;
    int n_ranks = 1;
    uint64_t stream_from_bytes = 0;  // results of at least this size are written past the cache
    const void* scalar = nullptr;    // the input counts this many times: one element
    bool lends = true;               // what lies in the input or output need not be copied to be sent
    bool one_way = false;            // nothing of the size comes back
  };
  Run(Program& program, const Operation& operation, const Recorder& recorder);

  // The first `steps` of the only lane are done already.
  void skip(size_t steps) {
    program_.lanes[0].next = steps;
    if (program_.lanes[0].done()) lanes_left_ = 0;
  }
  // Does what can be done now. kIdle: every lane waits for a peer.
  Poll advance();
  const Error& error() const { return error_; }
  // The operation that another rank has called differently, if that is what the error says and it may tell more.
  uint64_t differs_in() const { return differs_in_; }

  // After a failure: nobody reads this operation's buffers any more.
  void recall();
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
  // The same as messages of the operation, each with its tag; at least one for each rank that is waited for, but for
  // those that a link will take as soon as it is made.
  struct Awaited {
    bool sends;
    int peer;
    TagWords tag;
  };
  std::vector<Awaited> awaited() const;
  // A message of a different call that has arrived on `link` (one that this operation does not use, perhaps).
  bool check_stray(Link& link);

 private:
  using Part = ChunkLayout::Part;  // a step's, in its block
  // Some of them, and how far into the part they are.
  struct Piece {
    uint64_t begin, elems, offset_bytes;
  };

  bool advance_lane(BoundLane& lane);
  bool execute(BoundLane& lane);
  bool deliver(BoundLane& lane);
  bool take_delivery(BoundLane& lane);
  Part part_of(const BoundLane& lane) const { return part_of(lane, lane.steps[lane.next]); }
  Part part_of(const BoundLane& lane, const BoundStep& step) const;
  bool messages_are_there(const BoundStep& step);
  void expect_message(BoundLane& lane);
  void tell_places(BoundLane& lane);
  static bool is_copy(const BoundStep& step) {
    return step.recvs.size() == 1 && step.before.buffer == Buffer::kNone && step.local.buffer == Buffer::kNone;
  }
  bool accept_messages(const BoundStep& step, uint64_t expected_bytes);
  void disagree(const Call& mine, int peer, const Call& theirs);
  bool accept_message(const BoundStep& step, const Link& link, const tuttiMessage& message, uint64_t expected_bytes);
  // Where the value that a step sends is to be written: into the link's slot, or to its place at the receiver and at
  // those of the steps that follow and send the same, if at all.
  struct Targets {
    void* at[kMaxDestinations - 1];
    size_t n = 0;
    bool placed = false;
  };
  Targets targets(const BoundLane& lane, Part part, void* slot, const void* lent) const;
  bool compute(const BoundStep& step, Part part, const Targets& targets);
  void compute_piece(const BoundStep& step, const Piece& piece, const Targets& targets);
  void compute_part(const BoundStep& step, Part part, const Targets& targets);
  bool borrow_messages(const BoundStep& step, bool* any);
  bool still_lent(const BoundStep& step);
  const void* source(const PlacedSlice& slice, const Piece& piece);
  bool is_scaled(const PlacedSlice& slice) const {
    return operation_.scalar != nullptr && slice.buffer == Buffer::kInput;
  }
  char* room(size_t i) const { return program_.rooms.data() + i * piece_bytes_; }
  const void* lent_value(const BoundStep& step, Part part) const;
  void send(const BoundStep& step, Part part, void* slot, const void* lent);
  const TagWords& tag_of(const BoundStep& step) const {
    return operation_.tags.empty() ? tag_ : operation_.tags[step.size.block];
  }
  const TagWords& last_tag(const Link& link) const;
  uint64_t rounds_of(const BoundLane& lane) const;
  char* address(const PlacedSlice& slice, const Piece& piece) const;
  bool all_sent();
  template <class Visit>
  bool for_each_blocked(Visit&& visit) const;

  Program& program_;
  const Operation& operation_;
  const Recorder& recorder_;
  TagWords tag_;
  size_t elem_bytes_;
  size_t piece_bytes_;
  ChunkLayout layout_;
  uint64_t rounds_;
  ReduceKernel reduce_;
  CopyKernel copy_;
  bool stream_;
  bool scalars_ready_ = false;
  size_t lanes_left_;
  Error error_;
  uint64_t differs_in_ = 0;
};

template <class FindLink>
Program bind(const Schedule& schedule, MessageSizes sizes, FindLink&& find_link) {
  Program program;
  program.n_chunks = std::max(1u, schedule.n_chunks);  // a barrier has none
  program.sizes = sizes;
  program.scratch.resize(static_cast<size_t>(schedule.n_scratch) * sizes.slot_bytes);
  program.may_lend = schedule.may_lend;
  for (const Lane& lane : schedule.lanes) {
    BoundLane bound;
    for (const Step& step : lane.steps) {
      BoundStep b;
      b.size = take_apart({Buffer::kNone, step.chunk}, schedule.n_chunks);
      b.before = take_apart(step.before, schedule.n_chunks);
      b.local = take_apart(step.local, schedule.n_chunks);
      b.store = take_apart(step.store, schedule.n_chunks);
      b.completes = step.completes;
      for_each_sender(schedule, step, [&](int peer) { b.recvs.push_back(find_link(peer, lane.channel, false)); });
      b.local_place =
          step.recv == kEveryone ? static_cast<uint32_t>(schedule.rank) : static_cast<uint32_t>(b.recvs.size());
      program.src.resize(std::max(program.src.size(), b.recvs.size() + 2));
      program.messages.resize(std::max(program.messages.size(), b.recvs.size()));
      if (step.send >= 0) b.send = find_link(step.send, lane.channel, true);
      if (b.send != nullptr && std::find(program.sends.begin(), program.sends.end(), b.send) == program.sends.end())
        program.sends.push_back(b.send);
      bound.steps.push_back(b);
    }
    // Only sums are written to their places: what is there already is read by its receiver, where it lies.
    const bool sums =
        std::any_of(lane.steps.begin(), lane.steps.end(), [](const Step& step) { return step.completes; });
    if (sums && schedule.may_lend)
      for (const Placeable& placeable : placeable_messages(lane))
        if (placeable.ahead > 0) bound.steps[placeable.from].expects.push_back(placeable);
    if (!bound.steps.empty()) program.lanes.push_back(std::move(bound));
  }
  return program;
}

}  // namespace tutti
