// This header: schedules made ready for the interpreter on the GPU, for ranks that share one: steps, links and slots in
// its memory. Belongs to one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <tuple>

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
  // schedules[r].rank == r. Waits for the device.
  static Result<std::unique_ptr<LoadedPrograms>> load(Port& port, std::span<const Schedule> schedules,
                                                      const Shape& shape);
  ~LoadedPrograms();

  // A call without an operation.
  const ProgramCall& call() const { return call_; }

 private:
  explicit LoadedPrograms(Port& port) : port_(port) {}

  Port& port_;
  void *links_ = nullptr, *tables_ = nullptr;
  ProgramCall call_;
};

// The group's programs by operation.
class Programs {
 public:
  Programs(Port& port, int n_ranks, int multiprocessors)
      : port_(port), n_ranks_(n_ranks), multiprocessors_(multiprocessors) {}

  // Whether the interpreter takes it: sums that have to be made in one place it does not.
  static bool takes(const Operation& operation, Algo algo);
  // kInvalidUsage where the GPU has no room for all ranks' blocks at once.
  Result<ProgramCall> find(const Operation& operation, Algo algo);

 private:
  using Key = std::tuple<Collective, Algo, int>;  // root

  Port& port_;
  const int n_ranks_, multiprocessors_;
  std::map<Key, std::unique_ptr<LoadedPrograms>> loaded_;
};

}  // namespace tutti::cuda
