// connect(2) fails where a test wants it. It takes the place of the C library's, so include this in one file of a
// program.
#pragma once

#include <dlfcn.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>

namespace tutti_test {

inline std::atomic<int> g_stream_errno{0}, g_datagram_errno{0};

// While this exists, for each kind of socket; 0: it does not fail.
struct FailingConnect {
  explicit FailingConnect(int of_streams, int of_datagrams = 0) {
    g_stream_errno = of_streams;
    g_datagram_errno = of_datagrams;
  }
  ~FailingConnect() { g_stream_errno = g_datagram_errno = 0; }
  FailingConnect(const FailingConnect&) = delete;
  FailingConnect& operator=(const FailingConnect&) = delete;
};

}  // namespace tutti_test

extern "C" int connect(int fd, const sockaddr* address, socklen_t bytes) {
  static const auto call = reinterpret_cast<decltype(&connect)>(dlsym(RTLD_NEXT, "connect"));
  int type = 0;
  socklen_t type_bytes = sizeof type;
  ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_bytes);
  const int why = type == SOCK_STREAM ? tutti_test::g_stream_errno : tutti_test::g_datagram_errno;
  if (why == 0) return call(fd, address, bytes);
  errno = why;
  return -1;
}
