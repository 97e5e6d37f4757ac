// This header: the way that is always there: through memory of the host, and the communicator there. The stream copies
// the input out, tells a thread to run the operation, waits for its answer, and copies the output in. Nothing of this
// changes from time to time, so a graph that was captured can be replayed; what it needs is kept as long as the
// communicator.
//
// Where ranks of one process share a GPU, a stream that waits may hold up another one's (household.h). There the call
// waits instead, while it is asked again, for the input to be there and for the operation to have run.
#pragma once

#include "cuda/device.h"
#include "cuda/proxy.h"

namespace tutti::cuda {

// `may_wait`: in streams.
std::unique_ptr<Way> make_staged(Host& host, Port& port, const DeviceInfo& info, std::shared_ptr<Proxy> proxy,
                                 bool may_wait);

}  // namespace tutti::cuda
