// Stream sockets: addresses of this host, listening, connecting without blocking, whole-message sends and receives.
// IPv4, IPv6 and abstract UNIX names alike. All descriptors are non-blocking and close-on-exec.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "base/secure_channel.h"

namespace tutti {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  static Address of_ip(std::span<const uint8_t> ip, uint16_t port = 0);  // 4 bytes, or 16
  std::span<const uint8_t> ip() const;                                   // 4 bytes, 16, or none

  int family() const { return storage.ss_family; }
  uint16_t port() const;
  void set_port(uint16_t port);
  bool same_place(const Address& other) const;  // ignoring the port
  // Length of the common prefix in bits; -1 if the families differ.
  int common_bits(const Address& other) const;
  std::string to_string() const;  // "10.0.0.1:4000", "[fe80::1%3]:4000", "unix:@name"
  bool is_loopback() const;
  bool is_link_local() const;  // IPv6's fe80::/10: means something only together with an interface
};

struct Interface {
  std::string name;
  Address address;       // port 0
  int network_bits = 0;  // length of the network prefix
};
// NCCL's grammar for names: "eth,ib" prefixes, "=eth0,eth1" exact names, "^docker,virbr" all that do not match. is_it()
// is asked about each part between commas.
bool matches_filter(std::string_view filter, const std::function<bool(std::string_view part, bool exact)>& is_it);
// As the kernel reports it; 0 if it does not, as for most virtual devices.
int64_t megabits_per_second(const Interface& interface);
bool is_hardware(const Interface& interface);
// Lower is better. A container bridge has the same address on every host.
enum Preference : int { kRealNetwork, kContainerBridge, kLinkLocal, kLoopback };
Preference preference(const Interface& interface);

// All of this host's interfaces that are up, whatever TUTTI_SOCKET_IFNAME says.
Result<std::vector<Interface>> all_interfaces();
// This host's usable addresses (interfaces that are up), filtered by TUTTI_SOCKET_IFNAME. Without a filter, in order of
// preference: global addresses, then docker-like bridges and link-local ones, then loopback.
// An error names the filter and the interfaces there are when nothing matches.
Result<std::vector<Interface>> local_interfaces();

// Listens on `address` (port 0: any free one); `bound` receives the address actually used.
Result<Fd> listen_on(const Address& address, Address* bound);
// Listens on every address of the host, IPv6 and IPv4 in one socket where the kernel allows it.
Result<Fd> listen_any(uint16_t port, uint16_t* bound_port);
Result<Fd> listen_unix_abstract(const std::string& name);

// Starts to connect; `connect_finished` tells when the connection is established. TCP sends at most `segment_bytes` of
// data in a packet; 0: TUTTI_TCP_MSS, or as much as the interface takes. EADDRNOTAVAIL: no local port is left for it.
Result<Fd> connect_start(const Address& address, int segment_bytes = 0);
// Passes every network, even one that silently drops larger packets, so that ranks that meet there can report it.
inline constexpr int kSmallSegmentBytes = 500;
// Non-blocking: kInProgress, kSuccess, or kSystemError with the reason in *sys_errno.
Code connect_finished(int fd, int* sys_errno);
// Accepts one pending connection, or one that a porter has brought; an invalid Fd if there is none (errno: EAGAIN).
Fd accept_one(int listen_fd);

// The addresses of a host's name or of a numeric address, with this port (this may block on DNS).
Result<std::vector<Address>> resolve(const std::string& host, uint16_t port);
// The same, tried again until the deadline: the name may not exist yet, as while its container is being started.
Result<std::vector<Address>> resolve(const std::string& host, uint16_t port, Deadline deadline);
Address unix_abstract_address(const std::string& name);

// The address of a socket's own end, and of the other end; nothing if it has none.
std::optional<Address> local_address(int fd);
std::optional<Address> peer_address(int fd);
std::string peer_name(int fd);  // the other end: "10.0.0.1:4000"

// Whether new connections send at the delivery rate they measure (BBR), regardless of losses; others halve their rate
// when a packet is lost.
bool sends_by_rate();

// Blocking helpers for set-up paths: all bytes or an error (kTimeout when the deadline passes, kRemoteError when the
// other side closes).
Result<void> send_all(int fd, const void* data, size_t bytes, Deadline deadline, SecureChannel* channel = nullptr);
Result<void> recv_all(int fd, void* data, size_t bytes, Deadline deadline, SecureChannel* channel = nullptr);

// Bytes, with at most one file descriptor per call, through a UNIX socket, without blocking. Sending returns whether
// all bytes were sent, receiving what recv(2) returns.
bool send_with_descriptor(int socket, const void* bytes, size_t n, const Fd& descriptor);
ssize_t receive_with_descriptor(int socket, void* bytes, size_t n, Fd* descriptor);

// The host within which shared memory and UNIX sockets reach, by boot id and network namespace, as 16 bytes. Two
// network namespaces are two hosts.
struct HostId {
  uint8_t bytes[16];
  bool operator==(const HostId&) const = default;
};
HostId host_id();
// The same without the namespace: the machine whose CPUs this process uses. Containers may share it.
HostId machine_id();
std::string host_name();

}  // namespace tutti
