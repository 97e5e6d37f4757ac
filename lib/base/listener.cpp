// Where a rank listens: at the addresses that it tells others, and nowhere else.
#include <algorithm>
#include <cerrno>

#include "base/dial.h"
#include "base/env.h"
#include "base/porter.h"

namespace tutti {
namespace {

constexpr size_t kMaxAddresses = 32;  // so that a contact fits a transport's address
constexpr int kAttempts = 50;         // to find a port that is free at all addresses

// One socket for each address, all with this port; 0: with the one that the kernel gives the first.
Result<Listener> listen_at(const std::vector<Interface>& interfaces, uint16_t port) {
  Listener listener;
  listener.contact.host = host_id();
  std::optional<Error> failed;
  for (const Interface& i : interfaces) {
    Address address = i.address, bound;
    address.set_port(port);
    auto fd = listen_on(address, &bound);
    if (!fd && fd.error().sys_errno != EADDRNOTAVAIL && fd.error().sys_errno != EAFNOSUPPORT) return fd.error();
    if (!fd) {  // IPv6 may be coming up or going down
      failed = fd.error();
      continue;
    }
    port = bound.port();
    address.set_port(port);
    listener.fds.push_back(std::move(fd).value());
    listener.contact.addresses.push_back(address);
    listener.interfaces.push_back(i);
  }
  if (listener.fds.empty() && failed) return *failed;
  return listener;
}

Result<Listener> listen_behind_port(const std::vector<Interface>& interfaces, uint16_t port, uint64_t door) {
  if (door == 0) random_bytes(&door, sizeof door);
  TUTTI_TRY_ASSIGN(Fd fd, open_door(port, door));
  Listener listener;
  listener.fds = only(std::move(fd));
  listener.interfaces = interfaces;
  listener.contact.host = host_id();
  listener.contact.door = door;
  for (const Interface& i : interfaces) listener.contact.addresses.emplace_back(i.address).set_port(port);
  return listener;
}

}  // namespace

std::vector<Interface> advertised(std::vector<Interface> interfaces) {
  const std::string filter = env_string("TUTTI_SOCKET_IFNAME");
  if (!filter.empty() && !filter.starts_with('^')) return interfaces;  // the user named these
  const bool any_real = std::ranges::count(interfaces, kRealNetwork, preference) > 0;
  const int wanted = any_real ? kRealNetwork : kLinkLocal;
  bool has_loopback = false;
  std::erase_if(interfaces, [&](const Interface& i) {
    const bool is_first_loopback = preference(i) == kLoopback && !std::exchange(has_loopback, true);
    return preference(i) != wanted && !is_first_loopback;
  });
  return interfaces;
}

Result<Listener> Listener::open(uint64_t door) {
  TUTTI_TRY_ASSIGN(auto interfaces, local_interfaces());
  interfaces = advertised(std::move(interfaces));
  if (interfaces.size() > kMaxAddresses) interfaces.resize(kMaxAddresses);
  TUTTI_TRY_ASSIGN(const int64_t port, env_int("TUTTI_PORT"));
  if (port != 0) return listen_behind_port(interfaces, static_cast<uint16_t>(port), door);
  TUTTI_TRY_ASSIGN(const auto range, env_port_range());
  const int n_ports = range.first == 0 ? kAttempts : range.last - range.first + 1;
  uint32_t start = 0;  // ranks begin at different places
  random_bytes(&start, sizeof start);
  std::optional<Error> failed;
  for (int i = 0; i < n_ports; i++) {
    const uint32_t offset = (start + static_cast<uint32_t>(i)) % static_cast<uint32_t>(n_ports);
    auto listener = listen_at(interfaces, range.first == 0 ? uint16_t{0} : static_cast<uint16_t>(range.first + offset));
    if (listener || listener.error().sys_errno != EADDRINUSE) return listener;
    failed = listener.error();
  }
  if (range.first == 0) return *failed;
  return Error{
      Code::kSystemError,
      format("all %d ports of TUTTI_PORT_RANGE=%u-%u are in use on %s; give a wider range: each rank takes "
             "one for the group and one for each transport over TCP, a group's root takes one more, and a group "
             "of more than 8 ranks another on each host",
             n_ports, range.first, range.last, host_name().c_str()),
      -1, EADDRINUSE};
}

}  // namespace tutti
