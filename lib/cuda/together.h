// This header: all ranks are threads of one process and share one GPU. Nothing guarantees that kernels of different
// streams run side by side, so no kernel may wait for another one: one kernel serves all ranks (household.h), reads all
// inputs and writes all outputs where they lie.
#pragma once

#include <string>

#include "cuda/device.h"
#include "cuda/household.h"

namespace tutti::cuda {

// All ranks of the group come with the same `name`, which no other group of this process has.
std::unique_ptr<Way> make_together(Host& host, Port& port, const DeviceInfo& info, std::shared_ptr<Household> household,
                                   const std::string& name);

}  // namespace tutti::cuda
