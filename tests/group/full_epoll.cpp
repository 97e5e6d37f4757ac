#include "full_epoll.h"

#include <dlfcn.h>
#include <sys/epoll.h>

#include <atomic>
#include <cerrno>

namespace {

std::atomic<bool> g_is_full = false;
std::atomic<int> g_refusals = 0;

}  // namespace

// Takes the place of the C library's, which it calls.
extern "C" int epoll_ctl(int epoll, int what, int fd, epoll_event* event) noexcept {
  static const auto call = reinterpret_cast<decltype(&epoll_ctl)>(dlsym(RTLD_NEXT, "epoll_ctl"));
  if (what != EPOLL_CTL_ADD || !g_is_full) return call(epoll, what, fd, event);
  g_refusals++;
  errno = ENOMEM;
  return -1;
}

namespace tutti::test {

FullEpoll::FullEpoll() {
  g_refusals = 0;
  g_is_full = true;
}

FullEpoll::~FullEpoll() {
  g_is_full = false;
}

int FullEpoll::refusals() {
  return g_refusals;
}

}  // namespace tutti::test
