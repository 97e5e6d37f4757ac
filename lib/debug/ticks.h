// This header: time as cheap as the CPU has it, for what is stamped on every operation. Ticks of unknown length:
// whoever reads them takes two points in time by both clocks.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace tutti {

// Whether this CPU's counter can stand for time: the kernel itself takes it for that.
bool cpu_counts_time();

inline uint64_t ticks([[maybe_unused]] bool by_cpu) {
#if defined(__x86_64__)
  if (by_cpu) return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  if (by_cpu) {
    uint64_t count;
    asm volatile("mrs %0, cntvct_el0" : "=r"(count));
    return count;
  }
#endif
  return static_cast<uint64_t>(now_ns());
}

}  // namespace tutti
