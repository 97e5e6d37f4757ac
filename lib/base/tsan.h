// Tells ThreadSanitizer of an order between threads that it cannot see, because each maps the memory behind it at an
// address of its own. What came before tsan_release(key) in one thread comes before what follows tsan_acquire(key) in
// another. Nothing in other builds.
#pragma once

#if defined(__SANITIZE_THREAD__)
#define TUTTI_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TUTTI_TSAN 1
#endif
#endif

#if defined(TUTTI_TSAN)
extern "C" void __tsan_acquire(void* key);
extern "C" void __tsan_release(void* key);
#endif

namespace tutti {

inline void tsan_acquire([[maybe_unused]] void* key) {
#if defined(TUTTI_TSAN)
  __tsan_acquire(key);
#endif
}

inline void tsan_release([[maybe_unused]] void* key) {
#if defined(TUTTI_TSAN)
  __tsan_release(key);
#endif
}

}  // namespace tutti
