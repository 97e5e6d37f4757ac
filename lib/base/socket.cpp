#include "base/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/env.h"
#include "base/file.h"
#include "base/log.h"
#include "base/porter.h"
#include "base/sort.h"

namespace tutti {
namespace {

constexpr int kSocketFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int kBacklog = 1024;

std::span<const uint8_t> address_bytes(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return {reinterpret_cast<const uint8_t*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr), 4};
  if (address->sa_family == AF_INET6)
    return {reinterpret_cast<const uint8_t*>(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr), 16};
  return {};
}

// errno is passed by value: naming the address may change it.
Error about(const Address& address, const char* what, int sys_errno) {
  return system_error(what + address.to_string(), sys_errno);
}

Result<void> wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd p{fd, events, 0};
    const int n = ::poll(&p, 1, deadline.left_ms(100));
    if (n > 0) return {};
    if (n < 0 && errno != EINTR) return system_error("poll", errno);
    if (deadline.passed()) return Error{Code::kTimeout, "no answer in time"};
  }
}

// Docker's other bridges are called br- and a hexadecimal number; br-ex, say, may be the host's uplink.
bool is_container_bridge(const std::string& name) {
  constexpr size_t kDockersNameBytes = 15;
  if (name.size() == kDockersNameBytes && name.starts_with("br-"))
    return name.find_first_not_of("0123456789abcdef", 3) == std::string::npos;
  static constexpr const char* kPrefixes[] = {"docker", "virbr", "cni", "podman", "lxcbr", "lxdbr", "kube-bridge"};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes), [&](const char* p) { return name.starts_with(p); });
}

// A socket that forked children do not keep.
template <class Make>
Fd own_socket(Make&& make) {
  const std::lock_guard lock(sockets_mutex());
  Fd fd(make());
  if (fd) enter_socket(fd.get());
  return fd;
}

Fd own_socket(int family) {
  return own_socket([&] { return ::socket(family, kSocketFlags, 0); });
}

// Nothing is sent to find out. False also if that cannot be found out.
bool lacks_own_address_towards(const Address& address) {
  const Fd fd(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd && ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 &&
         (errno == EADDRNOTAVAIL || errno == ENETUNREACH);
}

// The kernel gives one reason for two: there is no port left here for another connection to that address, or no address
// of this host leads there.
void tell_ports_from_addresses(const Address& address, Error* error) {
  if (error->sys_errno != EADDRNOTAVAIL || address.family() == AF_UNIX) return;
  if (lacks_own_address_towards(address))
    error->sys_errno = ENETUNREACH;
  else
    error->message += " (all local ports are in use for connections to it: widen net.ipv4.ip_local_port_range)";
}

// Sockets of another kind ignore it.
void set_low_latency(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Both ends agree on it when they connect, so only one of them has to set it. Sockets of another kind ignore it.
void limit_segments(int fd, int segment_bytes) {
  const auto setting = env_int("TUTTI_TCP_MSS");
  const int most = segment_bytes > 0 ? segment_bytes : setting ? static_cast<int>(setting.value()) : 0;
  if (most > 0) setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &most, sizeof most);
}

std::optional<Address> address_by(int (*ask)(int, sockaddr*, socklen_t*), int fd) {
  Address address;
  address.length = sizeof address.storage;
  if (ask(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) return {};
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  if (address.family() == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))  // who came to a dual-stack listener
    return Address::of_ip(address.ip().last(4), address.port());
  return address;
}

// Where a socket's own port is the one that it calls and nobody listens there, TCP connects it to itself.
bool is_connected_to_itself(int fd) {
  const auto here = local_address(fd), there = peer_address(fd);
  return here && there && here->port() != 0 && here->port() == there->port() && here->same_place(*there);
}

HostId id_of(const std::string& text) {
  HostId id;
  crypto_generichash(id.bytes, sizeof id.bytes, reinterpret_cast<const uint8_t*>(text.data()), text.size(), nullptr, 0);
  return id;
}

// Identifies this boot of the kernel; the host's name if the kernel does not tell.
std::string boot_id() {
  static const auto& boot = *new std::string(first_line("/proc/sys/kernel/random/boot_id"));
  return boot.empty() ? host_name() : boot;
}

}  // namespace

Result<std::vector<Interface>> all_interfaces() {
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return system_error("listing this host's network interfaces", errno);
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || !(i->ifa_flags & IFF_UP)) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Interface entry;
    entry.name = i->ifa_name;
    entry.address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    memcpy(&entry.address.storage, i->ifa_addr, entry.address.length);
    if (i->ifa_netmask != nullptr)
      for (const uint8_t byte : address_bytes(i->ifa_netmask)) entry.network_bits += std::popcount(byte);
    found.push_back(std::move(entry));
  }
  freeifaddrs(list);
  return found;
}

bool matches_filter(std::string_view filter, const std::function<bool(std::string_view part, bool exact)>& is_it) {
  const bool excludes = filter.starts_with('^');
  if (excludes) filter.remove_prefix(1);
  const bool exact = filter.starts_with('=');
  if (exact) filter.remove_prefix(1);
  for (size_t at = 0; at < filter.size();) {
    const size_t end = std::min(filter.find(',', at), filter.size());
    if (end > at && is_it(filter.substr(at, end - at), exact)) return !excludes;
    at = end + 1;
  }
  return excludes;
}

Address Address::of_ip(std::span<const uint8_t> ip, uint16_t port) {
  Address address;
  const bool is_v4 = ip.size() == 4;
  address.storage.ss_family = is_v4 ? AF_INET : AF_INET6;
  address.length = is_v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  address.set_port(port);
  void* const to = is_v4 ? static_cast<void*>(&reinterpret_cast<sockaddr_in*>(&address.storage)->sin_addr)
                         : &reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_addr;
  memcpy(to, ip.data(), ip.size());
  return address;
}

std::span<const uint8_t> Address::ip() const {
  return address_bytes(reinterpret_cast<const sockaddr*>(&storage));
}

uint16_t Address::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return 0;
}

void Address::set_port(uint16_t port) {
  if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
}

int Address::common_bits(const Address& other) const {
  if (family() != other.family()) return -1;
  const auto a = ip(), b = other.ip();
  const auto [x, y] = std::mismatch(a.begin(), a.end(), b.begin());
  const int bits = static_cast<int>(x - a.begin()) * 8;
  return x == a.end() ? bits : bits + std::countl_zero(static_cast<uint8_t>(*x ^ *y));
}

bool Address::same_place(const Address& other) const {
  return common_bits(other) == (family() == AF_INET ? 32 : 128);
}

std::string Address::to_string() const {
  if (family() == AF_UNIX) {
    const auto* un = reinterpret_cast<const sockaddr_un*>(&storage);
    return "unix:@" + std::string(un->sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
  }
  char host[NI_MAXHOST] = "?";
  getnameinfo(reinterpret_cast<const sockaddr*>(&storage), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return format(family() == AF_INET6 ? "[%s]:%u" : "%s:%u", host, port());
}

bool Address::is_loopback() const {
  if (family() == AF_INET) return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24) == 127;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

bool Address::is_link_local() const {
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

// IPv4's 169.254.0.0/16 is a real network: hosts that a fast cable joins directly often have nothing else on it.
Preference preference(const Interface& i) {
  if (i.address.is_loopback()) return kLoopback;
  if (i.address.is_link_local()) return kLinkLocal;
  return is_container_bridge(i.name) ? kContainerBridge : kRealNetwork;
}

int64_t megabits_per_second(const Interface& interface) {
  // The file cannot be read while the interface has no carrier.
  return std::max(atoll(first_line("/sys/class/net/" + interface.name + "/speed").c_str()), 0ll);
}

bool is_hardware(const Interface& interface) {
  return access(("/sys/class/net/" + interface.name + "/device").c_str(), F_OK) == 0;
}

Result<std::vector<Interface>> local_interfaces() {
  TUTTI_TRY_ASSIGN(std::vector<Interface> all, all_interfaces());
  const std::string filter = env_string("TUTTI_SOCKET_IFNAME");
  std::string names;  // an interface is in the list once per address
  for (const Interface& i : all)
    if ((", " + names + ",").find(", " + i.name + ",") == std::string::npos)
      names += (names.empty() ? "" : ", ") + i.name;
  const auto is_left_out = [&](const Interface& i) {
    return !matches_filter(
        filter, [&](std::string_view part, bool exact) { return exact ? i.name == part : i.name.starts_with(part); });
  };
  if (!filter.empty()) std::erase_if(all, is_left_out);
  if (all.empty()) {
    const std::string have = names.empty() ? "no interface is up" : "these are up: " + names;
    return Error{Code::kInvalidUsage, filter.empty()
                                          ? "this host has no network interface that is up, not even lo"
                                          : "TUTTI_SOCKET_IFNAME=" + filter + " matches no interface; " + have};
  }
  sort_stably(all, [](const Interface& a, const Interface& b) { return preference(a) < preference(b); });
  return all;
}

Result<Fd> listen_on(const Address& address, Address* bound) {
  Fd fd = own_socket(address.family());
  if (!fd) return system_error("socket", errno);
  const int on = 1, off = 0;
  if (address.family() != AF_UNIX) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family() == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0) {
    Error error = about(address, "bind to ", errno);
    if (error.sys_errno == EACCES && address.family() != AF_UNIX)
      error.message +=
          " (only root may listen on ports below net.ipv4.ip_unprivileged_port_start: choose a higher one)";
    return error;
  }
  if (::listen(fd.get(), kBacklog) != 0) return about(address, "listen on ", errno);
  if (bound != nullptr) *bound = local_address(fd.get()).value_or(Address{});
  return fd;
}

Result<Fd> listen_any(uint16_t port, uint16_t* bound_port) {
  Address bound;
  auto fd = listen_on(Address::of_ip(in6addr_any.s6_addr, port), &bound);
  // A kernel without IPv6 has no dual-stack socket.
  if (!fd && (fd.error().sys_errno == EAFNOSUPPORT || fd.error().sys_errno == EADDRNOTAVAIL))
    fd = listen_on(Address::of_ip(std::array<uint8_t, 4>{}, port), &bound);
  if (fd && bound_port != nullptr) *bound_port = bound.port();
  return fd;
}

Address unix_abstract_address(const std::string& name) {
  Address address;
  auto* un = reinterpret_cast<sockaddr_un*>(&address.storage);
  un->sun_family = AF_UNIX;
  const size_t bytes = std::min(name.size(), sizeof un->sun_path - 1);
  memcpy(un->sun_path + 1, name.data(), bytes);  // sun_path[0] == 0: the abstract namespace
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return address;
}

Result<Fd> listen_unix_abstract(const std::string& name) {
  return listen_on(unix_abstract_address(name), nullptr);
}

Result<Fd> connect_start(const Address& address, int segment_bytes) {
  Fd fd = own_socket(address.family());
  if (!fd) return system_error("socket", errno);
  set_low_latency(fd.get());
  limit_segments(fd.get(), segment_bytes);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 &&
      errno != EINPROGRESS) {
    const bool lacks_lo = errno == ENETUNREACH && address.family() == AF_INET && address.is_loopback();
    Error error = about(address, "connect to ", errno);
    tell_ports_from_addresses(address, &error);
    if (lacks_lo) error.message += " (a host reaches itself through the interface lo: ip link set lo up)";
    return error;
  }
  return fd;
}

Code connect_finished(int fd, int* sys_errno) {
  pollfd p{fd, POLLOUT, 0};
  if (::poll(&p, 1, 0) <= 0) return Code::kInProgress;
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0 && is_connected_to_itself(fd)) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};  // its end must not keep the port from who wants to listen
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    error = ECONNREFUSED;
  }
  *sys_errno = error;
  return error == 0 ? Code::kSuccess : Code::kSystemError;
}

// Called now and then by threads that wait for messages. Usually nobody is connecting, and then no lock is taken.
Fd accept_one(int listen_fd) {
  pollfd waiting{listen_fd, POLLIN, 0};
  if (::poll(&waiting, 1, 0) == 0) {
    errno = EAGAIN;
    return {};
  }
  if (is_door(listen_fd)) return accept_at_door(listen_fd);
  Fd fd = own_socket([&] { return ::accept4(listen_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
  if (fd) set_low_latency(fd.get());
  return fd;
}

Result<std::vector<Address>> resolve(const std::string& host, uint16_t port) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  int rc = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (rc != 0) {  // AI_ADDRCONFIG ignores loopback: a host that has nothing else must still resolve itself
    hints.ai_flags = 0;
    rc = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  }
  if (rc == EAI_SYSTEM) return system_error("cannot resolve host '" + host + "'", errno);
  if (rc != 0) return Error{Code::kSystemError, "cannot resolve host '" + host + "': " + gai_strerror(rc)};
  std::vector<Address> found;
  for (const addrinfo* i = list; i != nullptr; i = i->ai_next) {
    Address address;
    memcpy(&address.storage, i->ai_addr, i->ai_addrlen);
    address.length = i->ai_addrlen;
    address.set_port(port);
    found.push_back(address);
  }
  freeaddrinfo(list);
  return found;
}

Result<std::vector<Address>> resolve(const std::string& host, uint16_t port, Deadline deadline) {
  constexpr int kPauseMs = 200;
  for (bool is_told = false;; ::poll(nullptr, 0, deadline.left_ms(kPauseMs))) {
    auto found = resolve(host, port);
    if (found || deadline.passed()) return found;
    if (!std::exchange(is_told, true))
      log(LogLevel::kWarn, "%s; it may appear later: trying again until the timeout", found.error().message.c_str());
  }
}

std::optional<Address> local_address(int fd) {
  return address_by(::getsockname, fd);
}

std::optional<Address> peer_address(int fd) {
  return address_by(::getpeername, fd);
}

std::string peer_name(int fd) {
  const auto address = peer_address(fd);
  if (!address) return "a closed socket";
  return address->family() == AF_UNIX ? "a process of this host" : address->to_string();
}

bool sends_by_rate() {
  const Fd fd = own_socket(AF_INET);
  char name[16] = "";
  socklen_t bytes = sizeof name;
  const bool is_known = fd && ::getsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name, &bytes) == 0;
  return is_known && std::string_view(name, strnlen(name, sizeof name)).starts_with("bbr");
}

Result<void> send_all(int fd, const void* data, size_t bytes, Deadline deadline, SecureChannel* channel) {
  for (size_t done = 0;;) {
    const Moved moved = send_rest(fd, channel, data, bytes, &done);
    if (moved == Moved::kAll) return {};
    if (moved == Moved::kBroken) return Error{Code::kRemoteError, system_error("send", errno).message, -1, errno};
    TUTTI_TRY(wait_for(fd, POLLOUT, deadline));
  }
}

Result<void> recv_all(int fd, void* data, size_t bytes, Deadline deadline, SecureChannel* channel) {
  for (size_t done = 0;;) {
    const Moved moved = recv_rest(fd, channel, data, bytes, &done);
    if (moved == Moved::kAll) return {};
    if (moved == Moved::kBroken && errno == 0) return Error{Code::kRemoteError, "the other side closed the connection"};
    if (moved == Moved::kBroken) return Error{Code::kRemoteError, "receive: " + why_broken(errno), -1, errno};
    TUTTI_TRY(wait_for(fd, POLLIN, deadline));
  }
}

bool send_with_descriptor(int socket, const void* bytes, size_t n, const Fd& descriptor) {
  iovec data{const_cast<void*>(bytes), n};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (descriptor) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int raw = descriptor.get();
    memcpy(CMSG_DATA(header), &raw, sizeof raw);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(n);
}

ssize_t receive_with_descriptor(int socket, void* bytes, size_t n, Fd* descriptor) {
  iovec data{bytes, n};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_LEN(sizeof(int));  // not CMSG_SPACE, whose padding has room for a second descriptor
  const ssize_t received = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received <= 0) return received;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int)))
    return received;
  int raw = -1;
  memcpy(&raw, CMSG_DATA(header), sizeof raw);
  descriptor->reset(raw);
  return received;
}

HostId host_id() {
  struct stat ns {};
  if (stat("/proc/self/ns/net", &ns) != 0) ns.st_ino = 0;
  return id_of(format("%s/%lu", boot_id().c_str(), ns.st_ino));
}

HostId machine_id() {
  return id_of(boot_id());
}

std::string host_name() {
  char name[256] = "unknown-host";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace tutti
