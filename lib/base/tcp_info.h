// What the kernel knows of a TCP connection; nothing of other sockets. Any thread. Not with <netinet/tcp.h>, which has
// an older structure of that name.
#pragma once

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string_view>

#include "base/at_fork.h"

namespace tutti {

inline std::optional<tcp_info> kernel_info(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  return info;
}

// The shortest there was, there and back, which a busy process hardly makes longer. 0: nothing is known of it.
inline uint64_t round_trip_ns(int fd) {
  const auto info = kernel_info(fd);
  return info && info->tcpi_min_rtt != UINT32_MAX ? uint64_t{info->tcpi_min_rtt} * 1000 : 0;
}

// Whether new connections send at the rate that they have seen to get through (BBR), whatever is lost; others halve
// theirs when a packet is.
inline bool sends_by_rate() {
  const std::lock_guard no_fork(sockets_mutex());
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  char name[16] = "";
  socklen_t bytes = sizeof name;
  const bool is_known = fd >= 0 && ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) == 0;
  if (fd >= 0) ::close(fd);
  return is_known && std::string_view(name, strnlen(name, sizeof name)).starts_with("bbr");
}

}  // namespace tutti
