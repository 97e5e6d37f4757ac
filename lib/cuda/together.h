// This header: all ranks are threads of one process and share one GPU. Nothing guarantees that kernels of different
// streams run side by side, so no kernel may wait for another one. The rank that calls last launches one kernel for all
// of them, which reads all inputs and writes all outputs where they lie; the ranks' streams meet before it and go their
// ways after it. A rank's call returns when that launch has been made, so a thread that holds several ranks groups its
// calls.
#pragma once

#include "cuda/device.h"

namespace tutti::cuda {

// All ranks of the group come with the same `name`, which no other group of this process has.
std::unique_ptr<Way> make_together(Host& host, Port& port, int device, int multiprocessors, const std::string& name);

}  // namespace tutti::cuda
