// A client of PMIx, which Open MPI's mpirun and `srun --mpi=pmix` serve. libpmix is loaded at run time, so that Tutti
// neither needs it to be built nor to run under other launchers; only what is called is declared (pmix.cpp).
// The library is reference-counted: an MPI_Init in the same process shares it. Blocking; one thread at a time.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/result.h"

namespace tutti {

class Pmix {
 public:
  // Loads libpmix and connects to the launcher's server.
  static Result<Pmix> init();
  // Collective over the job: returns rank 0's value for `key` on all ranks; the other ranks' values are ignored.
  Result<std::string> share(const std::string& key, const std::string& value, int rank, Deadline deadline);
  // Tells the launcher that this process ends in good order. Nothing works afterwards.
  void finalize();

 private:
  struct Library;
  explicit Pmix(const Library* library) : library_(library) {}
  Error failed(const char* doing, int status) const;

  const Library* library_;
  char name_space_[256]{};
};

}  // namespace tutti
