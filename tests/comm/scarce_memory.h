// Memory that can be made scarce, for all threads, for this one, or for those of the library; and threads. Include it
// in the one source of a program.
#pragma once

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

static std::atomic<bool> g_lacks{false};
static thread_local bool t_lacks = false;
static thread_local long t_left = -1;  // this thread's allocations until one fails; -1: none fails
static thread_local bool t_is_main = false;
static std::atomic<long> g_left_elsewhere{-1};  // t_left for the library's threads
static std::atomic<bool> g_elsewhere_lacks{false};
static thread_local bool t_is_slow = false;  // so that it is still in the library when others believe it has left
void* operator new(size_t bytes) {
  if (t_is_slow) usleep(2000);
  const bool is_elsewhere = !t_is_main && g_left_elsewhere >= 0;
  const bool is_the_one =
      (t_left >= 0 && t_left-- == 0) || (is_elsewhere && g_left_elsewhere-- == 0) || (!t_is_main && g_elsewhere_lacks);
  void* const memory = is_the_one || ((g_lacks || t_lacks) && bytes >= size_t{1} << 20) ? nullptr : malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  free(memory);
}

static thread_local long t_threads_left = -1;  // that this thread can start; -1: as many as it likes
extern "C" [[gnu::visibility("default")]] int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                                             void* (*start)(void*), void* argument) noexcept {
  static const auto next = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (t_threads_left == 0) return EAGAIN;
  if (t_threads_left > 0) t_threads_left--;
  return next(thread, attributes, start, argument);
}
