// The slow side of an asymmetric store-load barrier between two threads that each store and then load what the other
// stored: the thread that seldom does so has the kernel run a barrier on all CPUs, if it can, and the thread that does
// so all the time needs only a compiler barrier (atomic_signal_fence).
#pragma once

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace tutti {

// Whether the kernel can do this. Registers this process, as every process must whose threads rely on it.
inline bool membarrier_is_there() {
  static const bool is_there = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
  return is_there;
}
// A barrier for this thread and all threads of all registered processes. A system call of some microseconds.
inline void membarrier_everywhere() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
}

}  // namespace tutti
