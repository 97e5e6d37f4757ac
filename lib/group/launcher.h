// Who started this process, and how its ranks get a common UniqueId: see tuttiCommInitFromEnv in tutti.h for the list.
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
  int local_rank = -1;  // -1 when the launcher does not say
};

// Reads the environment only. kInvalidUsage lists what was looked for when nothing fits, or names the missing variable.
Result<LaunchInfo> detect_launcher();

// Collective over the job: rank 0 starts a root and publishes its id through the launcher's key-value store, or on an
// agreed address; the others fetch it. The n-th call in each process agrees on the n-th id.
Result<UniqueId> unique_id_from_launcher(const LaunchInfo& info, Deadline deadline);

}  // namespace tutti
