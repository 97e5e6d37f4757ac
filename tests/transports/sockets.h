// The TCP connections of this process, found without the links that hold them.
#pragma once

#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <set>
#include <vector>

#include "base/dial.h"
#include "catch.h"

namespace tutti::test {

// This process's connected TCP sockets.
inline std::set<int> connections() {
  std::set<int> found;
  DIR* all = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(all)) {
    const int fd = atoi(entry->d_name);
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    const bool connected = getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0;
    if (connected && (peer.ss_family == AF_INET || peer.ss_family == AF_INET6)) found.insert(fd);
  }
  closedir(all);
  return found;
}

inline uint16_t port_of(int fd, decltype(getsockname)* name) {
  Address address;
  address.length = sizeof address.storage;
  name(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address.port();
}

// Both ends of each connection of a new link. Two connections to different ports may share their own port.
struct Ends {
  int from, to;
};
inline std::vector<Ends> ends_of_link(const std::set<int>& before, uint16_t listening_port) {
  std::vector<Ends> ends;
  const std::set<int> now = connections();
  for (const int from : now)
    for (const int to : now)
      if (!before.contains(from) && !before.contains(to) && port_of(from, getpeername) == listening_port &&
          port_of(to, getsockname) == listening_port && port_of(from, getsockname) == port_of(to, getpeername))
        ends.push_back({from, to});
  return ends;
}

// A connection that was just closed has received nothing.
inline tcp_info info_of(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length);
  return info;
}
inline uint64_t received_bytes(int fd) {
  return info_of(fd).tcpi_bytes_received;
}
inline uint64_t resent_segments(int fd) {
  return info_of(fd).tcpi_total_retrans;
}

}  // namespace tutti::test
