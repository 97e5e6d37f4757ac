// Tells ThreadSanitizer of an order between threads that it cannot see, because each maps the memory behind it at an
// address of its own. What came before tsan_release(key) in one thread comes before what follows tsan_acquire(key) in
// another. Nothing in other builds.
#pragma once

#include <cstdint>

#if defined(__SANITIZE_THREAD__)
#define TUTTI_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TUTTI_TSAN 1
#endif
#endif

#if defined(TUTTI_TSAN)
extern "C" void __tsan_acquire(void* spot);
extern "C" void __tsan_release(void* spot);
#endif

namespace tutti {

#if defined(TUTTI_TSAN)
// ThreadSanitizer keeps its clocks by address and crashes where one thread frees the memory that another still names:
// these stay. Two keys that share a spot hide a race at most.
inline uint64_t tsan_spots[1 << 12];
inline void* tsan_spot(uint64_t key) {
  return &tsan_spots[key % (sizeof tsan_spots / sizeof *tsan_spots)];
}
#endif

inline void tsan_acquire([[maybe_unused]] uint64_t key) {
#if defined(TUTTI_TSAN)
  __tsan_acquire(tsan_spot(key));
#endif
}

inline void tsan_release([[maybe_unused]] uint64_t key) {
#if defined(TUTTI_TSAN)
  __tsan_release(tsan_spot(key));
#endif
}

}  // namespace tutti
