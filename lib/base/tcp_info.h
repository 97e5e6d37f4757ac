// What the kernel knows about a TCP connection; nothing for other sockets. Any thread. Do not include together with
// <netinet/tcp.h>, which has an older structure of the same name.
#pragma once

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>

namespace tutti {

inline std::optional<tcp_info> kernel_info(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  return info;
}

// The connection's shortest round trip so far, which a busy process hardly lengthens. 0: unknown.
inline uint64_t round_trip_ns(int fd) {
  const auto info = kernel_info(fd);
  return info && info->tcpi_min_rtt != UINT32_MAX ? uint64_t{info->tcpi_min_rtt} * 1000 : 0;
}

}  // namespace tutti
