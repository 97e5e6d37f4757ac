// This header: schedules made ready for the interpreter on GPUs, for ranks of one process that share a GPU or have one
// each: steps, and links whose slots lie in the receiver's memory. Belongs to one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "cuda/moves.h"
#include "cuda/port.h"
#include "exec/operation.h"
#include "schedule/schedule.h"

namespace tutti::cuda {

// How many blocks of the interpreter run at once on a multiprocessor, at least (__launch_bounds__ sees to it).
inline constexpr int kProgramBlocksPerMultiprocessor = 2;

// The schedules of all ranks of a group, for one kind of operation.
class LoadedPrograms {
 public:
  struct Shape {
    uint32_t n_stripes = 1, n_slots = 2, slot_bytes = 128 << 10;
  };
  // schedules[r].rank == r, whose blocks run on devices[r]. Waits for the devices.
  static Result<std::unique_ptr<LoadedPrograms>> load(Port& port, std::span<const Schedule> schedules,
                                                      std::span<const int> devices, const Shape& shape);
  ~LoadedPrograms();

  // Calls without an operation: of all ranks, where they share a device, and of one.
  const ProgramCall& call() const { return calls_[0]; }
  ProgramCall call_of(int rank) const {
    ProgramCall call = calls_[static_cast<size_t>(rank)];
    call.n_ranks = 1;
    return call;
  }

 private:
  explicit LoadedPrograms(Port& port) : port_(port) {}

  Port& port_;
  std::vector<void*> memory_;       // by rank: links and scratch
  std::vector<void*> tables_;       // by rank
  std::vector<ProgramCall> calls_;  // by the first of their ranks, with tables of its device
};

// The group's programs by operation.
class Programs {
 public:
  // `devices`, by rank: one for all, or one for each.
  Programs(Port& port, std::vector<int> devices, int multiprocessors)
      : port_(port), devices_(std::move(devices)), multiprocessors_(multiprocessors) {}

  // Whether the interpreter takes it: sums that have to be made in one place it does not.
  static bool takes(const Operation& operation, Algo algo);
  // For all ranks, or for one. kInvalidUsage where a GPU has no room for all its ranks' blocks at once.
  Result<ProgramCall> find(const Operation& operation, Algo algo, int rank = kAllRanks);

 private:
  using Key = std::tuple<Collective, Algo, int>;  // root
  Result<std::unique_ptr<LoadedPrograms>> load(Collective collective, Algo algo, int root);

  Port& port_;
  const std::vector<int> devices_;
  const int multiprocessors_;
  std::map<Key, std::unique_ptr<LoadedPrograms>> loaded_;
};

}  // namespace tutti::cuda
