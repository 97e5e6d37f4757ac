// How the throughput grows with the number of ranks.
#pragma once

#include "options.h"

namespace tutti::train {

// Trains with 1, 2, 4, ... up to options.procs ranks, as processes and as threads, with a batch that stays the same
// (strong scaling) or grows (weak), with overlap and without, and prints a table. Returns the exit status.
int measure_scaling(const Options& options);

}  // namespace tutti::train
