// Which sanitizer this build has: for tests that do less then, because each slows them down tenfold, and for tests that
// cannot run under one.
#pragma once

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TUTTI_TEST_TSAN 1
#endif
#if __has_feature(address_sanitizer)
#define TUTTI_TEST_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define TUTTI_TEST_TSAN 1
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(TUTTI_TEST_TSAN)
#define TUTTI_TEST_SANITIZED 1
#endif

#if defined(TUTTI_TEST_SANITIZED)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
