// This header: messages among ranks that are threads of one process and share one GPU. The receiver's stream copies
// from where the sender's data lie, and events order that between the two streams, each recorded before somebody is
// told to wait for it. So it does not matter whether streams share a hardware queue, in which a wait holds up all that
// comes after it. A rank's call returns when its peers have called.
#pragma once

#include "cuda/device.h"

namespace tutti::cuda {

// All ranks of the group come with the same `name`, which no other group of this process has.
std::unique_ptr<Way> make_mail(Host& host, Port& port, const std::string& name);

}  // namespace tutti::cuda
