// The expensive side of a barrier between a store and a later load of two threads that each look for what the other has
// stored: where the kernel can run a barrier on all CPUs, the thread that seldom does this asks for that, and the one
// that does it all the time needs none, only the compiler's (atomic_signal_fence).
#pragma once

namespace tutti {

// Whether the kernel can: registers this process, as every process must whose threads rely on it.
bool membarrier_is_there();
// A barrier of this thread too. A system call of some microseconds. It reaches all threads of all processes that are
// registered.
void membarrier_everywhere();

}  // namespace tutti
