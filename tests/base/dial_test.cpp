// Connections over a network that loses packets.
#include "base/dial.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/tcp_info.h"
#include "catch.h"
#include "contains.h"
#include "failing_connect.h"

using namespace tutti;

namespace {

constexpr Key kGroupKey{7};

struct ListeningRank {
  ListeningRank() {
    auto listener = Listener::open();
    REQUIRE(listener);
    contact = listener.value().contact;
    fds = std::move(listener.value().fds);
  }
  Contact contact;
  std::vector<Fd> fds;
};

}  // namespace

TEST_CASE("a network that loses the first packets of a connection does not part two ranks") {
  // While a listener's queue is full the kernel drops SYNs, as a network may: here for 4 s; the first attempt has 3 s.
  ListeningRank busy;
  std::vector<Fd> queue;
  for (const Fd& door : busy.fds) REQUIRE(::listen(door.get(), 0) == 0);
  const Address door = ways_to(busy.contact)[0];
  Dialer dialer({kGroupKey, HelloKind::kControl, 1, 0}, std::vector{door});
  for (int i = 0; i < 4; i++) queue.push_back(std::move(connect_start(door).value()));
  // A hello whose packet is lost a few times.
  ListeningRank late;
  Fd line = std::move(connect_start(ways_to(late.contact)[0]).value());
  auto hello = Handshake::client(kGroupKey, HelloKind::kControl, 2, 0);

  Acceptor from_busy(std::move(busy.fds), kGroupKey, HelloKind::kControl, 0);
  Acceptor from_late(std::move(late.fds), kGroupKey, HelloKind::kControl, 0);
  auto dialed = Dialer::Status::kPending;
  bool is_in[2] = {};
  const Deadline dropped = Deadline::after_seconds(4), lost = Deadline::after_seconds(6);
  for (const Deadline end = Deadline::after_seconds(60); !end.passed() && !(is_in[0] && is_in[1]);) {
    if (dialed == Dialer::Status::kPending) dialed = dialer.advance();
    if (lost.passed()) hello.advance(line.get());
    if (dropped.passed()) queue.clear();
    if (dropped.passed() && from_busy.next()) is_in[0] = true;
    if (from_late.next()) is_in[1] = true;
    ::poll(nullptr, 0, 2);
    if (!dropped.passed()) REQUIRE(dialed == Dialer::Status::kPending);
  }
  CHECK(is_in[0]);
  CHECK(is_in[1]);
  CHECK(dialed != Dialer::Status::kFailed);
}

TEST_CASE("ranks that are stopped in the middle of a handshake, until the other side loses patience, call again") {
  ListeningRank busy;
  const std::vector door{ways_to(busy.contact)[0]};
  Acceptor acceptor(std::move(busy.fds), kGroupKey, HelloKind::kControl, 0);
  std::vector<Dialer> dialers;  // more than an Acceptor has patience with
  for (int rank = 1; rank <= 18; rank++)
    dialers.emplace_back(Dialer::Call{kGroupKey, HelloKind::kControl, rank, 0}, door);
  const auto until = [](auto&& there) {
    const Deadline end = Deadline::after_seconds(30);
    while (!end.passed() && !there()) ::poll(nullptr, 0, 1);
    return !end.passed();
  };
  REQUIRE(until([&] {
    return std::all_of(dialers.begin(), dialers.end(), [](Dialer& d) {
      return d.advance() == Dialer::Status::kPending && d.is_connected() && d.events() == POLLIN;
    });
  }));
  REQUIRE(until([&] {
    CHECK_FALSE(acceptor.next());
    pollfd first{dialers[0].fd(), POLLRDHUP, 0};
    return ::poll(&first, 1, 0) > 0;
  }));
  CHECK(until([&] {
    (void)acceptor.next();
    std::erase_if(dialers, [](Dialer& dialer) {
      const auto status = dialer.advance();
      CHECK(status != Dialer::Status::kFailed);
      return status != Dialer::Status::kPending;
    });
    return dialers.empty();
  }));
}

TEST_CASE("where the network fails while a busy peer is waited for, the next address is tried") {
  const ListeningRank busy;
  ListeningRank rank;
  Dialer dialer({kGroupKey, HelloKind::kTcp, 1, 0}, {ways_to(busy.contact)[0], ways_to(rank.contact)[0]});
  const Deadline end = Deadline::after_seconds(60);
  const auto is_acknowledged = [&] {
    const auto info = kernel_info(dialer.fd());
    return dialer.is_connected() && dialer.events() == POLLIN && info && info->tcpi_unacked == 0;
  };
  for (; !end.passed() && !is_acknowledged(); ::poll(nullptr, 0, 1))
    REQUIRE(dialer.advance() == Dialer::Status::kPending);
  sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);  // nothing arrives any more
  const sock_fprog loses_all{1, &none};
  REQUIRE(setsockopt(dialer.fd(), SOL_SOCKET, SO_ATTACH_FILTER, &loses_all, sizeof loses_all) == 0);
  Acceptor acceptor(std::move(rank.fds), kGroupKey, HelloKind::kTcp, 0);
  auto status = Dialer::Status::kPending;
  for (; !end.passed() && status == Dialer::Status::kPending; ::poll(nullptr, 0, 1)) {
    status = dialer.advance();
    (void)acceptor.next();
  }
  CHECK(status == Dialer::Status::kDone);
  int is_on = -1;
  socklen_t bytes = sizeof is_on;
  REQUIRE(getsockopt(dialer.fd(), SOL_SOCKET, SO_KEEPALIVE, &is_on, &bytes) == 0);
  CHECK(is_on == 0);  // its owner decides from now on
}

TEST_CASE("where somebody else answers at one address, the next one is tried") {
  Address elsewhere;
  const auto other = listen_on(resolve("127.0.0.1", 0).value().at(0), &elsewhere);
  REQUIRE(other);
  ListeningRank rank;
  Dialer dialer({kGroupKey, HelloKind::kControl, 1, 0}, std::vector{elsewhere, ways_to(rank.contact)[0]});
  Acceptor acceptor(std::move(rank.fds), kGroupKey, HelloKind::kControl, 0);
  auto status = Dialer::Status::kPending;
  bool is_in = false;
  for (const Deadline end = Deadline::after_seconds(20); !end.passed() && status == Dialer::Status::kPending;) {
    status = dialer.advance();
    accept_one(other.value().get());  // and hangs up
    is_in |= acceptor.next().has_value();
    ::poll(nullptr, 0, 1);
  }
  CHECK(status == Dialer::Status::kDone);
  CHECK(is_in);
}

TEST_CASE("who is cut off at once where ranks share a port, as by a porter that was killed, calls a few times more") {
  Address at;
  const auto porter = listen_on(resolve("127.0.0.1", 0).value().at(0), &at);
  REQUIRE(porter);
  Dialer dialer({kGroupKey, HelloKind::kControl, 1, 0, {}, 7}, std::vector{at});
  auto status = Dialer::Status::kPending;
  int calls = 0;
  for (const Deadline end = Deadline::after_seconds(60); !end.passed() && status == Dialer::Status::kPending;) {
    status = dialer.advance();
    if (accept_one(porter.value().get())) calls++;  // and hangs up
    ::poll(nullptr, 0, 1);
  }
  CHECK(calls > 1);
  CHECK(status == Dialer::Status::kFailed);
}

TEST_CASE("an address of a peer's that this host has, too, is tried last") {
  const auto mine = local_interfaces();
  REQUIRE(mine);
  const auto own = std::find_if(mine.value().begin(), mine.value().end(),
                                [](const Interface& i) { return preference(i) == kRealNetwork; });
  if (own == mine.value().end()) {
    WARN("skipped: this host has no address but its loopback's");
    return;
  }
  const Address other = resolve("198.51.100.1", 1).value().at(0);
  const auto ways = ways_to({HostId{}, {own->address, other}});
  REQUIRE(ways.size() == 2);
  CHECK(ways[0].to_string() == other.to_string());
  CHECK(ways[1].same_place(own->address));
}

TEST_CASE("the fastest networks come first, whatever their order, and connections side by side have one each") {
  std::string folder = (std::filesystem::temp_directory_path() / "tutti-speeds-XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  // Escapes from the kernel's folder of interfaces into the test's own folder.
  const auto network = [&](const std::string& name, const char* address, const char* megabits) {
    std::filesystem::create_directory(folder + "/" + name);
    REQUIRE(write_file(folder + "/" + name + "/speed", megabits));
    return Interface{"../../.." + folder + "/" + name, resolve(address, 0).value().at(0), 24};
  };
  std::vector<Interface> mine = {network("slow", "198.51.100.1", "1000"), network("fast", "192.0.2.1", "100000"),
                                 network("fast too", "203.0.113.1", "100000")};
  std::vector<Address> theirs;
  for (const char* address : {"198.51.100.2", "192.0.2.2", "203.0.113.2"})
    theirs.push_back(resolve(address, 1).value().at(0));
  const auto first = [&](size_t nth) { return ways_from(mine, theirs, nth).at(0).to_string(); };
  CHECK(first(0) == "192.0.2.2:1");
  CHECK(first(1) == "203.0.113.2:1");
  CHECK(first(2) == "192.0.2.2:1");
  CHECK(ways_from(mine, theirs, 0).size() == 3);  // the slow one is left for when the fast ones fail
  theirs.insert(theirs.begin() + 2, resolve("192.0.2.3", 1).value().at(0));
  CHECK(first(1) == "203.0.113.2:1");  // one network counts once, however many addresses a peer has in it
  theirs.erase(theirs.begin() + 2);
  mine.resize(2);
  CHECK(first(0) == "192.0.2.2:1");
  for (Interface& i : mine) i.name += "/unknown";
  CHECK(first(0) == "198.51.100.2:1");
  std::filesystem::remove_all(folder);
}

TEST_CASE("of a peer's addresses the one that shares most with this host's comes first, whatever its family") {
  const auto at = [](const char* address) { return resolve(address, 1).value().at(0); };
  const auto ways = [&](const std::vector<Interface>& mine, const std::vector<Address>& theirs) {
    std::string text;
    for (const Address& way : ways_from(mine, theirs, 0)) text.append(text.empty() ? "" : " ").append(way.to_string());
    return text;
  };
  const Interface v4{"no-such-4", at("10.0.1.5"), 24}, v6{"no-such-6", at("2001:db8::5"), 64};
  CHECK(ways({v4}, {at("10.1.1.5"), at("10.0.2.9")}) ==
        "10.0.2.9:1 10.1.1.5:1");  // equal bits behind the first difference do not count
  CHECK(ways({v4, v6}, {at("2001:db8:1::5"), at("10.0.1.9")}) == "10.0.1.9:1 [2001:db8:1::5]:1");
  CHECK(ways({v4, v6}, {at("10.0.3.9"), at("2001:db8::1:9")}) == "[2001:db8::1:9]:1 10.0.3.9:1");
  // Through whichever of this host's interfaces has such addresses, not by the peer's number for its own interface.
  const Interface link{"no-such-6", at("fe80::5%7"), 64}, other{"no-such-7", at("fe80::6%8"), 64};
  const auto links = ways_from({v4, link, other}, {at("fe80::9%1")}, 0);
  REQUIRE(links.size() == 2);
  for (size_t i = 0; i < 2; i++)
    CHECK(reinterpret_cast<const sockaddr_in6*>(&links[i].storage)->sin6_scope_id == 7 + i);
}

TEST_CASE("the loopback leads to ranks of this host, before all else, and to no others") {
  const Address loopback = resolve("127.0.0.1", 1).value().at(0), other = resolve("198.51.100.1", 1).value().at(0);
  const auto here = ways_to({host_id(), {other, loopback}});
  REQUIRE(here.size() == 2);
  CHECK(here[0].is_loopback());
  CHECK(ways_to({HostId{}, {loopback}}).empty());
}

TEST_CASE("who finds a UNIX socket's queue full asks again") {
  const std::string name = "tutti-test-queue-" + std::to_string(getpid());
  const Address door = unix_abstract_address(name);
  const auto listener = listen_unix_abstract(name);
  REQUIRE(listener);
  REQUIRE(::listen(listener.value().get(), 0) == 0);
  std::vector<Fd> queue;
  for (auto fd = connect_start(door); fd; fd = connect_start(door)) queue.push_back(std::move(fd).value());
  Dialer dialer({kGroupKey, HelloKind::kBootstrap, 1, -1}, std::vector{door});
  CHECK(dialer.advance() == Dialer::Status::kPending);
  CHECK(dialer.fd() < 0);
  while (accept_one(listener.value().get())) continue;
  CHECK(dialer.advance() == Dialer::Status::kPending);
  CHECK(dialer.fd() >= 0);
}

// To the kernel both are "Cannot assign requested address".
TEST_CASE("that no local port is left says nothing about the peer, and that no own address leads there does") {
  ListeningRank rank;
  const bool has_address = GENERATE(true, false);
  const tutti_test::FailingConnect failing(EADDRNOTAVAIL, has_address ? 0 : EADDRNOTAVAIL);
  Dialer dialer({kGroupKey, HelloKind::kControl, 1, 0}, rank.contact);
  REQUIRE(dialer.advance() == Dialer::Status::kFailed);
  CHECK(dialer.lacked_resources() == has_address);
  CHECK(tutti_test::contains(dialer.story(), "Cannot assign requested address"));
  CHECK(tutti_test::contains(dialer.story(), "widen net.ipv4.ip_local_port_range") == has_address);
}
