// What the executor runs: a Program is a schedule whose steps know their links, a BoundCall one operation with its
// buffers, and Lowering makes of both, step by step, what there is to do: links, bytes and addresses.
// A program and its links belong to one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "debug/call.h"
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
  std::vector<BoundStep> steps;    // a page: of a long lane some of its steps
  uint32_t before = 0, after = 0;  // how many others come before and after these
  // Where the running operation is.
  uint64_t round = 0;
  size_t next = 0;
  bool told = false;       // the links of the places that the next step expects messages at
  bool expecting = false;  // its next step has told the link where the message ought to go, or waits to be told

  bool done() const { return next == steps.size(); }
};

// Bytes that lie somewhere behind one of the bases: the buffers, and the messages that a step has taken.
struct Place {
  uint32_t base = 0;
  uint64_t offset_bytes = 0;
};
enum : uint32_t { kNowhere, kInput, kOutput, kScratch, kMessages };  // each Buffer, and the first message
static_assert(kInput == uint32_t(Buffer::kInput) && kScratch == uint32_t(Buffer::kScratch));

// find_link(peer, channel, sending) must know all links of the schedule as long as there is the program.
using FindLink = std::function<Link*(int, uint32_t, bool)>;

// Room for what one step after another works on.
struct Workspace {
  std::vector<tuttiMessage> messages;
  std::vector<char*> bases = std::vector<char*>(kMessages);  // the messages' too
  std::vector<Place> places;                                 // of sources
  std::vector<const void*> src;                              // the same as addresses
  std::vector<char> pieces;                                  // that are scaled; made when needed

  void make_room(size_t n_recvs);
  // As a number: point-to-point messages have no common buffer, their places are addresses.
  char* address(const Place& place) const {
    return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(bases[place.base]) + place.offset_bytes);
  }
};

struct Program {
  std::vector<BoundLane> lanes;
  Schedule schedule;  // of as many lanes
  FindLink find_link;
  std::vector<Link*> sends;  // every link that some step sends on which was ever bound
  MessageSizes sizes;
  std::vector<char> scratch;  // chunks of slot_bytes
  Workspace workspace;
  // Each step runs for all its rounds before the next one begins, and its block alone says how many: for messages that
  // have nothing to do with each other. Else the lane as a whole is repeated.
  bool step_by_step = false;
  // The buffers are registered memory of a device: messages are delivered, nothing is computed, all counts are bytes.
  bool on_device = false;

  // The lane's steps from the `first` on become those that are bound.
  void turn_page(BoundLane& lane, uint32_t first);
  BoundStep bind(const Step& step, uint32_t channel);
  bool all_sent() const;
};

// How many steps of a lane are bound at a time: all, but of very many ranks. Places are told no further ahead.
inline constexpr uint32_t kPageSteps = 256;

// Resolves a schedule's links.
Program bind_program(Schedule schedule, MessageSizes sizes, FindLink find_link);

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

// What is only ever a source.
inline char* as_base(const void* data) {
  return static_cast<char*>(const_cast<void*>(data));
}

struct BoundCall {
  Call call;
  Blocks blocks;                   // empty when only the tags are to travel
  std::span<const TagWords> tags;  // by logical block, where each message is a call of its own
  const void* input = nullptr;
  void* output = nullptr;
  int rank = 0;
  int n_ranks = 1;
  uint64_t stream_from_bytes = 0;  // results of this size, in place of twice this size, are written past the cache
  const void* scalar = nullptr;    // the input counts this many times: one element
  bool is_wide = false;            // the buffers hold floats, whatever the call says
  bool exposes = true;             // what lies in the input or output need not be copied to be sent
  bool one_way = false;            // nothing of the size comes back, and ranks have CPUs of their own

  // Of a step's messages.
  TagWords tag_of(const BoundStep& step) const { return tags.empty() ? to_tag(call) : tags[step.size.block]; }
  DataType dtype() const { return is_wide ? DataType::kFloat32 : call.dtype; }
  bool is_scaled(const Place& place) const { return scalar != nullptr && place.base == kInput; }
};

// A step of an operation in one of its rounds.
struct LoweredStep {
  std::span<Link* const> recvs;
  Link* send;
  uint32_t bytes;
  const Place* sources;  // reduce.n_src, in the order of the sum
  Place store;
  ReduceArgs reduce;     // but for the addresses
  bool pushes = false;   // a value that is sent as it is
  Place exposable = {};  // where that stays as it is, if it is worth exposing
};

struct Lowering {
  const Program& program;
  const BoundCall& call;
  size_t elem_bytes = program.on_device ? 1 : dtype_bytes(call.dtype());
  ChunkLayout layout{elem_bytes, std::max(1u, program.schedule.n_chunks), program.sizes};  // a barrier has none

  // `sources`: room for as many as the workspace's places.
  LoweredStep step(const BoundStep& step, uint64_t rounds, uint64_t round, Place* sources) const;
  Place exposable_place(const LoweredStep& step) const;
  ReduceKernel reduce_kernel() const;
};

}  // namespace tutti
