// This header: ranks whose GPUs' memory network devices read and write by themselves (GPUDirect RDMA, by dmabuf), past
// the CPU and the host's memory. Every rank has an arena of device memory that its network devices know. The stream
// copies the input there, which on the device costs little; a thread has the network move the bytes; the stream copies
// the output out. The user's own memory is not made known: it may be freed and given out anew without our knowledge,
// and what the network device had kept of it would then be another's.
//
// Only bytes are moved this way, and the GPU adds up. What reduces has every part collected at one rank, which adds it
// up in the order of ranks in one kernel, and hands the sum on: the scheme of Rabenseifner, "Optimization of Collective
// Reduction Operations" (ICCS 2004), with pairwise exchanges. A broadcast is likewise dealt out and gathered (van de
// Geijn et al., "Interprocessor Collective Communication Library", 1994).
#pragma once

#include "cuda/device.h"
#include "cuda/proxy.h"

namespace tutti::cuda {

// Collective. Null where some rank cannot: `why` says which and why. An error ends the creation.
Result<std::unique_ptr<Way>> make_direct(Host& host, Port& port, int device, const DeviceInfo& info,
                                         std::shared_ptr<Proxy> proxy, std::string* why);

}  // namespace tutti::cuda
