// This header: schedules translated for the interpreter on GPUs: steps, and links whose slots lie in the receiver's
// memory. For ranks of one process that share a GPU, and ranks with a GPU each. Belongs to one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "cuda/moves.h"
#include "cuda/port.h"
#include "exec/operation.h"
#include "schedule/schedule.h"

namespace tutti::cuda {

// How many blocks of the interpreter run at once on a multiprocessor, at least (ensured by __launch_bounds__).
inline constexpr int kProgramBlocksPerMultiprocessor = 2;

// Blocks of the interpreter for each lane, and the slots of a link.
struct ProgramShape {
  uint32_t n_stripes = 1, n_slots = 2, slot_bytes = 128 << 10;
};

// The schedules of one kind of operation, by rank.
using Schedules = std::vector<Schedule>;

// The schedules of ranks with a device each, for all kinds of operations at once, because later no rank may wait for
// others: each rank loads its part. All kinds use the same links, whose counts continue from one operation to the next.
class SpreadPrograms {
 public:
  SpreadPrograms(Port& port, std::vector<Schedules> kinds, const ProgramShape& shape);
  ~SpreadPrograms();
  // Loaded schedules of one kind, where all ranks share the calling thread's device. Waits for the device.
  static Result<std::unique_ptr<SpreadPrograms>> together(Port& port, const Schedules& schedules,
                                                          const ProgramShape& shape);

  // The size of the zeroed memory of its device that a rank must let all others use.
  size_t bytes(int rank) const;
  // Loads `n` ranks from this one on. `memory`: all ranks', by rank, as this rank's device addresses it. Waits for the
  // device.
  Result<void> load(int rank, const std::vector<void*>& memory, int n = 1);
  const ProgramCall& call(size_t kind = 0) const { return calls_[kind]; }  // without an operation

 private:
  Port& port_;
  std::vector<Schedules> kinds_;  // emptied by load()
  const ProgramShape shape_;
  void* tables_ = nullptr;
  std::vector<void*> own_;          // links and scratch, by rank, if all ranks share the device
  std::vector<ProgramCall> calls_;  // by kind
};

// Whether the interpreter can run it. It does not take sums that have to be made in one place.
bool interprets(const Operation& operation, Algo algo);

// Programs by operation, of ranks that share a device.
class SharedPrograms {
 public:
  SharedPrograms(Port& port, int n_ranks, int multiprocessors)
      : port_(port), n_ranks_(n_ranks), multiprocessors_(multiprocessors) {}
  // kInvalidUsage where the device has no room for all ranks' blocks at once.
  Result<ProgramCall> find(const Operation& operation, Algo algo);

 private:
  using Key = std::tuple<Collective, Algo, int>;  // root

  Port& port_;
  const int n_ranks_, multiprocessors_;
  std::map<Key, std::unique_ptr<SpreadPrograms>> loaded_;
};

// Programs of ranks with a device each. `multiprocessors`: of the smallest. Null if a rank's blocks do not fit there.
std::unique_ptr<SpreadPrograms> spread_programs(Port& port, int n_ranks, int multiprocessors, Algo algo);
ProgramCall find_program(const SpreadPrograms& programs, const Operation& operation, int n_ranks);

}  // namespace tutti::cuda
