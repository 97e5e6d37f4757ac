// What the kernel knows of a TCP connection; nothing of other sockets. Any thread. Not with <netinet/tcp.h>, which has
// an older structure of that name.
#pragma once

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>

namespace tutti {

inline std::optional<tcp_info> kernel_info(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  return info;
}

}  // namespace tutti
