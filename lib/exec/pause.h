// One turn of spinning.
#pragma once

namespace tutti {

// Turns from one look at the links' health, which is also what moves bytes over sockets, to the next.
inline constexpr int kTurnsPerPoll = 4;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tutti
