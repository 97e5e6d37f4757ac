// The whole measurement on one rank: all cycles, types, operators, roots and sizes.
#pragma once

#include <vector>

#include "collective.h"
#include "options.h"
#include "status.h"
#include "tensors.h"

namespace tutti::perf {

// Collective over `comm`, on the calling thread. `start_bytes` is the memory that this process held before it made
// `comm`. The error has exit status kExitWrongData if data were wrong.
Status run_rank(const Options& options, const Collective& collective, const std::vector<Tensor>& tensors,
                tuttiComm_t comm, double start_bytes);

// Bytes of all buffers of one rank.
size_t buffer_bytes(const Options& options, const Collective& collective, const std::vector<Tensor>& tensors,
                    int n_ranks);

}  // namespace tutti::perf
