// Connections made by hand, to do what a link never would. Only for transports whose addresses are understood here.
#pragma once

#include <dirent.h>

#include "base/dial.h"
#include "testing.h"
#include "transports/shm/shm_link.h"

namespace tutti::test {

// Where an endpoint of a built-in transport listens, and which kind of hello it expects.
struct Door {
  Address address;
  HelloKind kind;
};
inline Door door_of(const Endpoint& endpoint) {
  const std::string blob = endpoint.address();
  if (endpoint.name() == std::string("shm")) {
    shm::ShmAddress shm;
    REQUIRE(blob.size() == sizeof shm);
    memcpy(&shm, blob.data(), sizeof shm);
    return {unix_abstract_address({shm.name, strnlen(shm.name, sizeof shm.name)}), HelloKind::kShm};
  }
  const auto contact = Contact::from_bytes(blob);
  REQUIRE(contact);
  for (const Address& address : contact->addresses)
    if (address.is_loopback()) return {address, HelloKind::kTcp};
  REQUIRE_FALSE(contact->addresses.empty());
  return {contact->addresses[0], HelloKind::kTcp};
}
inline std::vector<const tuttiTransport*> transports_with_doors() {
  return {&kShmTransport, &kTcpTransport};
}

inline Fd knock(const Door& door) {
  auto fd = connect_start(door.address);
  if (!fd) return Fd();
  int error = 0;
  until([&] { return connect_finished(fd.value().get(), &error) != Code::kInProgress; });
  return error == 0 ? std::move(fd).value() : Fd();
}

inline Key key_of(uint8_t secret) {
  Key key;
  key.fill(secret);
  key.encrypts = env_int("TUTTI_ENCRYPT").value() != 0;
  return key;
}

// Does rank 0's handshake; afterwards the test has the connection. Invalid if the handshake did not get that far, or if
// the endpoint has made a link of the connection meanwhile.
inline Fd authenticate(Endpoint& to, const tuttiLinkConfig& ask, int from_rank = 0) {
  const Door door = door_of(to);
  Fd fd = knock(door);
  // The first of one connection, over TCP.
  auto handshake =
      Handshake::client(key_of(7), door.kind, from_rank, 1, {ask.channel, ask.slots, ask.slot_bytes, 0, 1});
  auto status = Handshake::Status::kPending;
  Link none;
  bool is_taken = false;
  const bool ended = until([&] {
    status = handshake.advance(fd.get());
    if (status == Handshake::Status::kPending) is_taken = is_taken || take(to, &none);
    return status != Handshake::Status::kPending;
  });
  return ended && !is_taken && status == Handshake::Status::kDone ? std::move(fd) : Fd();
}

// Whether the other side has hung up.
inline bool hung_up(int fd) {
  char rest[256];
  const ssize_t n = ::recv(fd, rest, sizeof rest, MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

// Raw bytes, whole.
inline bool send_raw(const Fd& fd, const void* data, size_t bytes) {
  return static_cast<bool>(send_all(fd.get(), data, bytes, Deadline::after_seconds(kPatienceSeconds)));
}

// Listens as an endpoint of the transport would, and has an address that leads there.
struct Impostor {
  Fd listener;
  std::string address;
};
inline Impostor listen_as_impostor(const tuttiTransport* table) {
  if (table->name == std::string("shm")) {
    shm::ShmAddress address{host_id(), {}};
    snprintf(address.name, sizeof address.name, "tutti-test-%d", getpid());
    auto listener = listen_unix_abstract(address.name);
    REQUIRE(listener);
    return {std::move(listener).value(), {reinterpret_cast<const char*>(&address), sizeof address}};
  }
  Address bound;
  auto listener = listen_on(resolve("127.0.0.1", 0).value().at(0), &bound);
  REQUIRE(listener);
  return {std::move(listener).value(), Contact{host_id(), {bound}}.to_bytes()};
}

inline size_t open_descriptors() {
  size_t n = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (dir != nullptr && readdir(dir) != nullptr) n++;
  if (dir != nullptr) closedir(dir);
  return n;
}

// Checks that a rank can still get in, and only that one.
inline void check_open_for_ranks(Endpoint& to, Deadline deadline = Deadline::after_seconds(kPatienceSeconds)) {
  tuttiEndpointConfig config{sizeof config, 0, 2, {}};
  memset(config.group_key, 7, sizeof config.group_key);
  config.encrypt = env_int("TUTTI_ENCRYPT").value() != 0;
  const auto t = to.name() == std::string("shm") ? &kShmTransport : &kTcpTransport;
  auto from = Endpoint::open(t, config);
  REQUIRE(from);
  Link out, in;
  REQUIRE(join(from.value(), Ask{1, 77}, to, &out, &in, deadline));
  CHECK(in.config().channel == 77);
}

}  // namespace tutti::test
