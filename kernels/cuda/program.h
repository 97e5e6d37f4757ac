// A schedule as the GPU runs it: plain data. Ranks' blocks pass messages through links, slots in memory that both ends
// reach. Every lane of a schedule is run by a number of blocks, the stripes. Each has its own part of every buffer and
// its own links, so blocks of one rank wait for each other only through messages.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tutti::cuda {

struct ProgramSlice {
  uint8_t buffer = 0;  // as schedule.h's Buffer
  uint32_t block = 0, chunk = 0;
};

struct ProgramStep {
  int32_t first_recv = 0, n_recv = 0;  // in the program's list of receiving ends
  int32_t send = -1;                   // a sending end
  uint32_t local_place = 0;            // how many messages come before `local` in the sum
  ProgramSlice size, before, local, store;
  bool completes = false;
};

struct ProgramLane {
  uint32_t first_step = 0, n_steps = 0;
};

// One end of a link. `head`, beside the slots at the receiver, counts the messages that were sent; `tail`, at the
// sender, those that were taken, so that each side waits on its own memory. `done` is this end's own count, which is
// kept between launches, so a launch that is replayed continues where the last one ended.
struct LinkEnd {
  char* slots = nullptr;
  uint32_t* head = nullptr;
  uint32_t* tail = nullptr;
  uint32_t* done = nullptr;
};

// One rank's program; all pointers are device pointers.
struct Program {
  const ProgramLane* lanes = nullptr;
  const ProgramStep* steps = nullptr;
  const int32_t* recvs = nullptr;  // receiving ends of all steps
  const LinkEnd* ends = nullptr;   // of stripe 0, then of stripe 1, ...
  char* scratch = nullptr;         // likewise, a slot's size for each chunk
  uint32_t n_ends = 0, n_scratch = 0;
};

inline constexpr int kProgramThreads = 256;
inline constexpr int kMaxProgramRanks = 64;
inline constexpr int kMaxProgramSources = kMaxProgramRanks + 2;

// A launch: a block for each stripe of each lane of each rank, all of them on the device at once.
struct ProgramCall {
  const void* inputs[kMaxProgramRanks];
  void* outputs[kMaxProgramRanks];
  const Program* programs = nullptr;  // by rank, in memory of the device
  uint32_t n_ranks = 0, n_lanes = 0, n_stripes = 1;
  uint32_t n_chunks = 1, n_slots = 2, slot_bytes = 0;
  uint64_t block_elems = 0;
  uint32_t divisor = 0;
  DataType dtype = DataType::kInt8;
  RedOp op = RedOp::kSum;
  const uint32_t* abort = nullptr;  // in host memory; not 0 ends all waiting
};

constexpr uint32_t blocks_of(const ProgramCall& call) {
  return call.n_ranks * call.n_lanes * call.n_stripes;
}

}  // namespace tutti::cuda
