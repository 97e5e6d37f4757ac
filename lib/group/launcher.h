// Who started this process, and how its ranks get a common UniqueId: see tuttiCommInitFromEnv in tutti.h for the list.
//
// A process that also uses MPI need do nothing for the launchers' own protocols. PMI and PMIx stay connected for the
// next group until exit(), because launchers kill the job when a process that has spoken to them ends without a
// farewell: end with exit() or a return from main, not with _exit(). MPI_Init may come before or after.
//
// srun without a PMI plugin: rank 0 listens on port 20000 + hash(job id, step id) % 10000 of the step's first host; a
// port that another program uses is an error at the deadline.
//
// Threading: any thread; the calls of a process are counted, so make them in the same order everywhere.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "group/bootstrap.h"

namespace tutti {

struct LaunchInfo {
  std::string launcher;  // "torchrun", "mpich", "openmpi", "slurm", "tutti"
  int rank = 0;
  int n_ranks = 1;
  int local_rank = -1;    // -1 when the launcher does not say
  bool encrypts = false;  // then the secret must not be guessable
};

// Reads the environment only. kInvalidUsage lists what was looked for when nothing fits, or names the missing variable.
Result<LaunchInfo> detect_launcher();

// Whether some launcher has told this process its rank, whatever else is wrong or missing.
bool has_rank_of_launcher();

// Collective over the job: rank 0 starts a root and publishes its id through the launcher's key-value store, or on an
// agreed address; the others fetch it. The n-th call in each process agrees on the n-th id; *n, unless null, becomes n.
Result<UniqueId> unique_id_from_launcher(const LaunchInfo& info, Deadline deadline, int* n = nullptr);

}  // namespace tutti
