// What the doctor finds, line by line.
#pragma once

#include <string>
#include <vector>

#include "tutti/tutti.h"

namespace tutti::doctor {

struct Finding {
  enum class Level : char { kGood = ' ', kWarning = '!', kBad = 'X' };
  Level level;
  std::string what, found, remedy;  // no remedy where it is good
};
using Findings = std::vector<Finding>;

// This process and its host, for so many ranks on it.
Findings look_at_host(int ranks_here);

// Sums and messages over each of the library's transports between two ranks of this process, compared with what they
// have to be.
Findings try_transports();

// The same between all ranks of the job, with whatever transport leads there; and whether all have the same version and
// settings. Collective; only rank 0's findings are worth printing.
Findings look_at_group(tuttiComm_t comm);

}  // namespace tutti::doctor
