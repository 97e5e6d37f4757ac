// The slow side of an asymmetric store-load barrier between two threads that each store and then load what the other
// stored: the thread that seldom does so has the kernel run a barrier on all CPUs, if it can, and the thread that does
// so all the time needs only a compiler barrier (atomic_signal_fence).
#pragma once

namespace tutti {

// Whether the kernel can do this. Registers this process, as every process must whose threads rely on it.
bool membarrier_is_there();
// A barrier for this thread and all threads of all registered processes. A system call of some microseconds.
void membarrier_everywhere();

}  // namespace tutti
