// What the executor runs: a Program is a schedule whose steps know their links, a BoundCall is one operation with its
// buffers, and Lowering works out from both, step by step, what there is to do: links, bytes and addresses.
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
  uint32_t local_place = 0;  // number of messages left of `local` in the sum
  bool completes = false;
  std::vector<Placeable> expects;  // messages of later steps whose places are posted when the lane reaches this step
};

struct BoundLane {
  std::vector<BoundStep> steps;    // a page: all steps, or some of a long lane
  uint32_t before = 0, after = 0;  // number of steps before and after this page
  // Where the running operation is.
  uint64_t round = 0;
  size_t next = 0;
  bool told = false;       // the places in `expects` of the next step have been posted
  bool expecting = false;  // the next step has posted its message's place, or waits for the receiver to post it

  bool done() const { return next == steps.size(); }
  bool is_whole() const { return before + after == 0; }
};

// Bytes at an offset from one of the bases: the buffers, and the messages that a step has received.
struct Place {
  uint32_t base = 0;
  uint64_t offset_bytes = 0;
};
enum : uint32_t { kNowhere, kInput, kOutput, kScratch, kMessages };  // the values of Buffer, and the first message
static_assert(kInput == uint32_t(Buffer::kInput) && kScratch == uint32_t(Buffer::kScratch));

// find_link(peer, channel, sending) must know all links of the schedule for the lifetime of the program.
using FindLink = std::function<Link*(int, uint32_t, bool)>;

// Working memory that one step after another uses.
struct Workspace {
  std::vector<tuttiMessage> messages;
  std::vector<char*> bases = std::vector<char*>(kMessages);  // including messages
  std::vector<Place> places;                                 // of a step's sources
  std::vector<const void*> src;                              // the same as addresses
  std::vector<char> pieces;                                  // for values that are scaled, if any are

  void make_room(size_t n_recvs);
  // In integers: point-to-point messages have no common buffer, so their offsets are addresses.
  char* address(const Place& place) const {
    return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(bases[place.base]) + place.offset_bytes);
  }
};

struct Program {
  std::vector<BoundLane> lanes;
  Schedule schedule;  // with the same lanes
  FindLink find_link;
  std::vector<Link*> sends;  // every link that any step bound so far sends on
  MessageSizes sizes;
  // Chunks of slot_bytes, of which short operations touch little: half a rank's worth of slots may be gigabytes.
  std::unique_ptr<char[]> scratch;
  size_t scratch_bytes = 0;
  Workspace workspace;
  // Each step runs for all its rounds, as many as its block needs, before the next one begins: for messages that are
  // independent of each other. Otherwise the lane as a whole is repeated for each round.
  bool step_by_step = false;
  // The buffers are registered memory of a device: messages are delivered, nothing is computed, all counts are bytes.
  bool on_device = false;

  // Binds the lane's steps from `first` on instead of those that are bound.
  void turn_page(BoundLane& lane, uint32_t first);
  BoundStep bind(const Step& step, uint32_t channel);
  bool all_sent() const;
};

// How many steps of a lane are bound at a time: all, except with very many ranks. Places are posted no further ahead.
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

// For data that is only read.
inline char* as_base(const void* data) {
  return static_cast<char*>(const_cast<void*>(data));
}

// What other ranks may read and write where it is, instead of in slots.
struct Exposure {
  bool any = true;                  // false: nothing
  bool copied_input = false;        // of a value that is also copied to the output, rather the input than the copy
  uint64_t outputs_from_bytes = 0;  // smaller outputs are neither read nor written by others
};

struct BoundCall {
  Call call;
  Blocks blocks;                   // empty if only the tags are sent
  std::span<const TagWords> tags;  // by logical block, where each message is a call of its own
  const void* input = nullptr;
  void* output = nullptr;
  int rank = 0;
  int n_ranks = 1;
  uint64_t stream_from_bytes = 0;  // results this large (in-place: twice this) are written past the cache
  const void* scalar = nullptr;    // factor of the input: one element
  bool is_wide = false;            // the buffers hold floats, whatever the call says
  Exposure exposes = {};
  bool one_way = false;  // no data of this size comes back, and ranks have CPUs of their own

  // Of the messages of a step.
  TagWords tag_of(const BoundStep& step) const { return tags.empty() ? to_tag(call) : tags[step.size.block]; }
  DataType dtype() const { return is_wide ? DataType::kFloat32 : call.dtype; }
  bool is_scaled(const Place& place) const { return scalar != nullptr && place.base == kInput; }
};

// A step of an operation in one of its rounds.
struct LoweredStep {
  std::span<Link* const> recvs;
  Link* send;
  uint32_t bytes;
  const Place* sources;  // reduce.n_src of them, in the order of the sum
  Place store;
  ReduceArgs reduce;     // without the addresses
  bool pushes = false;   // the step only sends a value, unchanged
  Place exposable = {};  // where the sent value stays, if it is worth exposing
};

struct Lowering {
  const Program& program;
  const BoundCall& call;
  size_t elem_bytes = program.on_device ? 1 : dtype_bytes(call.dtype());
  ChunkLayout layout{elem_bytes, std::max(1u, program.schedule.n_chunks), program.sizes};  // a barrier has none
  bool exposes_outputs = call.blocks.largest() * elem_bytes >= call.exposes.outputs_from_bytes;

  // `sources`: room for as many entries as the workspace's places.
  LoweredStep step(const BoundStep& step, uint64_t rounds, uint64_t round, Place* sources) const;
  Place exposable_place(const LoweredStep& step) const;
  ReduceKernel reduce_kernel() const;
};

}  // namespace tutti
