// Which addresses and ports a rank listens at.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <thread>

#include "base/dial.h"
#include "base/env.h"
#include "catch.h"
#include "contains.h"

using namespace tutti;
using tutti_test::contains;

namespace {

class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

Interface interface(const char* name, const char* address) {
  return {name, resolve(address, 0).value().front(), 24};
}

std::string names(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& i : interfaces) text += (text.empty() ? "" : " ") + i.name;
  return text;
}

bool is_open(Address address, uint16_t port) {
  address.set_port(port);
  auto fd = connect_start(address);
  if (!fd) return false;
  int why = 0;
  Code code;
  while ((code = connect_finished(fd.value().get(), &why)) == Code::kInProgress) std::this_thread::yield();
  return code == Code::kSuccess;
}

// Two adjacent ports that are free now.
uint16_t two_free_ports() {
  for (int i = 0; i < 100; i++) {
    uint16_t port = 0;
    const auto first = listen_any(0, &port);
    if (first && port < UINT16_MAX && listen_any(static_cast<uint16_t>(port + 1), nullptr)) return port;
  }
  FAIL("no two ports side by side are free");
  return 0;
}

}  // namespace

TEST_CASE("others are told of no container's bridge, and of the loopback once, for ranks of this host") {
  const Interface lo = interface("lo", "127.0.0.1"), lo6 = interface("lo", "::1");
  const Interface eth = interface("eth0", "10.1.2.3"), out = interface("br-ex", "10.1.3.4");
  std::vector<Interface> bridges;
  for (const char* name : {"docker0", "br-0123456789ab", "virbr0", "cni0", "podman1"})
    bridges.push_back(interface(name, "172.17.0.1"));
  std::vector<Interface> all = bridges;
  all.insert(all.end(), {lo, lo6, eth, out});
  CHECK(names(advertised(all)) == "lo eth0 br-ex");
  CHECK(names(advertised({eth, out})) == "eth0 br-ex");
  CHECK(names(advertised({eth, interface("br-ad", "10.1.4.5")})) == "eth0 br-ad");
  {
    const Variable exclusion("TUTTI_SOCKET_IFNAME", "^eth1");  // it asks for none of the bridges
    CHECK(names(advertised(all)) == "lo eth0 br-ex");
  }
  all = bridges;
  all.push_back(lo);
  CHECK(names(advertised(all)) == "lo");
  CHECK(names(advertised({interface("eth0", "fe80::1"), lo})) == "eth0 lo");
  CHECK(names(advertised({interface("eth0", "fe80::1"), eth, lo})) == "eth0 lo");
  const Variable filter("TUTTI_SOCKET_IFNAME", "docker");
  CHECK(names(advertised({bridges[0]})) == "docker0");  // an explicit request is honoured
}

TEST_CASE("a rank listens at the addresses that it tells, and at no others") {
  const Variable filter("TUTTI_SOCKET_IFNAME", "lo");
  const auto listener = Listener::open();
  REQUIRE(listener);
  const uint16_t port = listener.value().contact.addresses.at(0).port();
  for (const Address& address : listener.value().contact.addresses) {
    CHECK(address.is_loopback());
    CHECK(address.port() == port);
    CHECK(is_open(address, port));
  }
  unsetenv("TUTTI_SOCKET_IFNAME");
  const auto interfaces = local_interfaces();
  REQUIRE(interfaces);
  int others = 0;
  for (const Interface& i : interfaces.value()) {
    if (i.address.is_loopback() || i.address.is_link_local()) continue;
    INFO(i.address.to_string());
    CHECK_FALSE(is_open(i.address, port));
    others++;
  }
  if (others == 0) WARN("skipped: this host has no address but its loopback's");
}

TEST_CASE("doors that nobody will come by are closed") {
  auto listener = Listener::open();
  REQUIRE(listener);
  const std::vector<Address> addresses = listener.value().contact.addresses;
  Acceptor acceptor(std::move(listener.value().fds), Key{}, HelloKind::kControl, 0);
  CHECK(acceptor.descriptors() == addresses.size());
  acceptor.narrow(true, true);
  CHECK(acceptor.descriptors() == addresses.size());
  acceptor.narrow(true, false);
  for (const Address& address : addresses) {
    INFO(address.to_string());
    CHECK(is_open(address, address.port()) == address.is_loopback());
  }
  acceptor.narrow(false, false);
  CHECK(acceptor.descriptors() == 0);
  CHECK(!acceptor.next());
}

TEST_CASE("where there is no door at the loopback, peers of this host come by the others") {
  const auto interfaces = local_interfaces();
  REQUIRE(interfaces);
  const auto other = std::find_if(interfaces.value().begin(), interfaces.value().end(),
                                  [](const Interface& i) { return preference(i) == kRealNetwork; });
  if (other == interfaces.value().end()) {
    WARN("skipped: this host has no address but its loopback's");
    return;
  }
  const Variable filter("TUTTI_SOCKET_IFNAME", "=" + other->name);
  auto listener = Listener::open();
  REQUIRE(listener);
  Acceptor acceptor(std::move(listener.value().fds), Key{}, HelloKind::kControl, 0);
  const size_t all = acceptor.descriptors();
  acceptor.narrow(true, false);
  CHECK(acceptor.descriptors() == all);
}

TEST_CASE("a peer that was not looked at for long is not turned away for that") {
  auto listener = Listener::open();
  REQUIRE(listener);
  const Address address = listener.value().contact.addresses.at(0);
  Acceptor acceptor(std::move(listener.value().fds), Key{}, HelloKind::kControl, 0);
  auto fd = connect_start(address);
  REQUIRE(fd);
  int error = 0;
  while (connect_finished(fd.value().get(), &error) == Code::kInProgress) ::poll(nullptr, 0, 1);
  Handshake peer = Handshake::client(Key{}, HelloKind::kControl, 1, 0);
  CHECK(!acceptor.next());
  REQUIRE(acceptor.has_pending());
  ::poll(nullptr, 0, 5500);  // longer than a caller may take to prove itself
  std::optional<Acceptor::Accepted> accepted;
  const Deadline deadline = Deadline::after_seconds(3);
  Handshake::Status status = Handshake::Status::kPending;
  while ((!accepted || status == Handshake::Status::kPending) && !deadline.passed()) {
    if (status == Handshake::Status::kPending) status = peer.advance(fd.value().get());
    if (!accepted) accepted = acceptor.next();
    ::poll(nullptr, 0, 1);
  }
  CHECK(accepted);
  CHECK(status == Handshake::Status::kDone);
}

TEST_CASE("ports are taken from TUTTI_PORT_RANGE, and when it is used up the error says so") {
  const uint16_t first = two_free_ports();
  const std::string range = std::to_string(first) + "-" + std::to_string(first + 1);
  const Variable set("TUTTI_PORT_RANGE", range);
  const auto a = Listener::open(), b = Listener::open(), c = Listener::open();
  REQUIRE((a && b));
  const uint16_t port_a = a.value().contact.addresses.at(0).port(), port_b = b.value().contact.addresses.at(0).port();
  CHECK(std::min(port_a, port_b) == first);
  CHECK(std::max(port_a, port_b) == first + 1);
  REQUIRE(!c);
  CHECK(c.error().sys_errno == EADDRINUSE);
  CHECK(contains(c.error().message, "all 2 ports of TUTTI_PORT_RANGE=" + range + " are in use"));
}

TEST_CASE("a range of ports that is none is refused with what it should be") {
  for (const char* text : {"1", "4000", "4000-", "-4000", "5000-4000", "0-10", "4000-70000", "4000-4001x", "a-b"}) {
    INFO(text);
    const Variable set("TUTTI_PORT_RANGE", text);
    const auto range = env_port_range();
    REQUIRE(!range);
    CHECK(contains(range.error().message, std::string("TUTTI_PORT_RANGE=") + text + " is not valid"));
    CHECK(!env_check());
  }
  const Variable set("TUTTI_PORT_RANGE", "4000-4001");
  REQUIRE(env_port_range());
  CHECK(env_port_range().value().last == 4001);
  const Variable one("TUTTI_PORT_RANGE", "65535-65535");
  REQUIRE(env_port_range());
  CHECK(env_port_range().value().first == 65535);
}
