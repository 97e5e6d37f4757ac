#include "base/socket.h"

#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "catch.h"

using namespace tutti;

namespace {

class Filter {
 public:
  explicit Filter(const std::string& value) {
    if (const char* before = getenv("TUTTI_SOCKET_IFNAME")) before_ = before;
    setenv("TUTTI_SOCKET_IFNAME", value.c_str(), 1);
  }
  ~Filter() { setenv("TUTTI_SOCKET_IFNAME", before_.c_str(), 1); }

 private:
  std::string before_;
};

std::vector<Interface> interfaces(const std::string& filter) {
  const Filter set(filter);
  const auto found = local_interfaces();
  return found ? found.value() : std::vector<Interface>{};
}

Address numeric(const std::string& host, uint16_t port) {
  return resolve(host, port).value().at(0);
}

struct Connection {
  Fd client, server;
};
Connection connect_to(const Address& address, const Fd& listener) {
  Connection c;
  auto started = connect_start(address);
  REQUIRE(started);
  c.client = std::move(started).value();
  int error = 0;
  Code code = Code::kInProgress;
  while (code == Code::kInProgress || !c.server) {
    code = connect_finished(c.client.get(), &error);
    REQUIRE(error == 0);
    if (!c.server) c.server = accept_one(listener.get());
  }
  return c;
}

}  // namespace

TEST_CASE("addresses have readable names") {
  CHECK(numeric("10.1.2.3", 80).to_string() == "10.1.2.3:80");
  CHECK(numeric("2001:db8::1", 8080).to_string() == "[2001:db8::1]:8080");
  CHECK(unix_abstract_address("tutti-x").to_string() == "unix:@tutti-x");
  Address a = numeric("10.1.2.3", 80);
  a.set_port(65535);
  CHECK(a.port() == 65535);
  CHECK(numeric("127.0.0.1", 0).is_loopback());
  CHECK(numeric("127.9.9.9", 0).is_loopback());
  CHECK(numeric("::1", 0).is_loopback());
  CHECK(!numeric("10.1.2.3", 0).is_loopback());
  CHECK(!unix_abstract_address("x").is_loopback());
}

TEST_CASE("a host that does not exist is an error that names it") {
  const auto found = resolve("no-such-host.invalid", 1);
  REQUIRE(!found);
  CHECK(found.error().message.find("no-such-host.invalid") != std::string::npos);
}

TEST_CASE("a host that may not exist yet is looked for until the deadline") {
  const int64_t begin = now_ns();
  const auto found = resolve("no-such-host.invalid", 1, Deadline::after_seconds(0.5));
  REQUIRE(!found);
  CHECK(found.error().message.find("no-such-host.invalid") != std::string::npos);
  CHECK(now_ns() - begin >= 500'000'000);
  CHECK(resolve("localhost", 1, Deadline::after_seconds(60)));
}

TEST_CASE("interfaces without a filter: loopback is there and last") {
  const auto all = interfaces("");
  REQUIRE(!all.empty());
  CHECK(all.back().address.is_loopback());
  bool seen = false;
  for (const Interface& i : all) {
    CHECK((!seen || i.address.is_loopback()));
    seen = seen || i.address.is_loopback();
    CHECK(i.address.port() == 0);
  }
}

TEST_CASE("TUTTI_SOCKET_IFNAME: prefixes, exact names, exclusion") {
  const size_t n_all = interfaces("").size(), n_lo = interfaces("=lo").size();
  REQUIRE(n_lo > 0);
  for (const Interface& i : interfaces("=lo")) CHECK(i.name == "lo");
  for (const Interface& i : interfaces("lo")) CHECK(i.name.rfind("lo", 0) == 0);
  CHECK(interfaces("no-such,lo").size() == interfaces("lo").size());
  CHECK(interfaces("l").size() >= n_lo);
  CHECK(interfaces("=l").empty());
  CHECK(interfaces("^=lo").size() == n_all - n_lo);
  CHECK(interfaces("^no-such").size() == n_all);
}

TEST_CASE("a filter that matches nothing is an error that lists what there is") {
  const Filter set("no-such-interface");
  const auto found = local_interfaces();
  REQUIRE(!found);
  CHECK(found.error().code == Code::kInvalidUsage);
  CHECK(found.error().message.find("TUTTI_SOCKET_IFNAME=no-such-interface") != std::string::npos);
  CHECK(found.error().message.find("lo") != std::string::npos);
}

TEST_CASE("bytes go through TCP and UNIX sockets alike") {
  const bool tcp = GENERATE(true, false);
  Address address;
  Result<Fd> listener = Fd();
  if (tcp) {
    listener = listen_on(numeric("127.0.0.1", 0), &address);
  } else {
    const std::string name = "tutti-test-" + std::to_string(getpid());
    listener = listen_unix_abstract(name);
    address = unix_abstract_address(name);
  }
  REQUIRE(listener);
  CHECK(!accept_one(listener.value().get()));  // nobody there yet
  Connection c = connect_to(address, listener.value());

  // More than the kernel buffers, so that both sides have to wait.
  const std::string data(5 << 20, 'd');
  bool sent = false;
  std::thread sender([&] {
    sent = static_cast<bool>(send_all(c.client.get(), data.data(), data.size(), Deadline::after_seconds(60)));
  });
  std::string got(data.size(), '\0');
  const auto received = recv_all(c.server.get(), got.data(), got.size(), Deadline::after_seconds(60));
  sender.join();
  CHECK(sent);
  REQUIRE(received);
  CHECK(got == data);

  char byte;
  const auto late = recv_all(c.server.get(), &byte, 1, Deadline::after_seconds(0.05));
  REQUIRE(!late);
  CHECK(late.error().code == Code::kTimeout);
  c.client.reset();
  const auto closed = recv_all(c.server.get(), &byte, 1, Deadline::after_seconds(60));
  REQUIRE(!closed);
  CHECK(closed.error().code == Code::kRemoteError);
}

TEST_CASE("sending to one who does not read ends at the deadline, to one who left at once") {
  Address address;
  const auto listener = listen_on(numeric("127.0.0.1", 0), &address);
  REQUIRE(listener);
  Connection c = connect_to(address, listener.value());
  const std::string data(64 << 20, 'd');
  const auto full = send_all(c.client.get(), data.data(), data.size(), Deadline::after_seconds(0.05));
  REQUIRE(!full);
  CHECK(full.error().code == Code::kTimeout);
  c.server.reset();
  const auto gone = send_all(c.client.get(), data.data(), data.size(), Deadline::after_seconds(60));
  REQUIRE(!gone);
  CHECK(gone.error().code == Code::kRemoteError);
}

TEST_CASE("a refused connection says so") {
  // A port that is bound, so that no other process gets it, but that nobody listens on.
  Address address = numeric("127.0.0.1", 0);
  const Fd holder(::socket(AF_INET, SOCK_STREAM, 0));
  REQUIRE(::bind(holder.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0);
  REQUIRE(getsockname(holder.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) == 0);
  auto fd = connect_start(address);
  int error = 0;
  Code code = Code::kInProgress;
  while (fd && code == Code::kInProgress) code = connect_finished(fd.value().get(), &error);
  CHECK(code == Code::kSystemError);
  CHECK(error == ECONNREFUSED);
}

TEST_CASE("a socket that TCP has connected to itself is refused, and leaves the port to who listens") {
  Address address = numeric("127.0.0.1", 0);
  Fd fd(::socket(AF_INET, SOCK_STREAM, 0));
  REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0);
  REQUIRE(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) == 0);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0);
  int error = 0;
  CHECK(connect_finished(fd.get(), &error) == Code::kSystemError);
  CHECK(error == ECONNREFUSED);
  fd.reset();
  CHECK(listen_any(address.port(), nullptr));
}

TEST_CASE("one listener serves IPv4 and IPv6") {
  uint16_t port = 0;
  const auto listener = listen_any(0, &port);
  REQUIRE(listener);
  REQUIRE(port != 0);
  connect_to(numeric("127.0.0.1", port), listener.value());
  const bool has_v6 = static_cast<bool>(listen_on(numeric("::1", 0), nullptr));
  if (has_v6)
    connect_to(numeric("::1", port), listener.value());
  else
    WARN("skipped: no ::1 here");
}

TEST_CASE("a port in use is refused with its name") {
  Address address;
  const auto listener = listen_on(numeric("127.0.0.1", 0), &address);
  REQUIRE(listener);
  const auto second = listen_on(address, nullptr);
  REQUIRE(!second);
  CHECK(second.error().sys_errno == EADDRINUSE);
  CHECK(second.error().message.find(address.to_string()) != std::string::npos);
}

TEST_CASE("a host knows itself") {
  CHECK(host_id() == host_id());
  CHECK(!host_name().empty());
}
