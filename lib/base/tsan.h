// Tells ThreadSanitizer of a happens-before relation that it cannot see, because each thread maps the shared memory at
// its own address. What precedes tsan_release(key) in one thread happens before what follows tsan_acquire(key) in
// another. Does nothing in other builds.
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
// ThreadSanitizer keeps its clocks by address and crashes if one thread frees memory that another still names, so these
// are static. Two keys that share a spot can at worst hide a race.
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
