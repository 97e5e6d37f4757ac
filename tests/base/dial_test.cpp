// Connections over a network that loses packets.
#include "base/dial.h"

#include <sys/socket.h>

#include "catch.h"

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
  // Where a queue is full the kernel drops SYNs, as a network may: for 4 s, of which the first attempt has 3.
  ListeningRank busy;
  std::vector<Fd> queue;
  for (const Fd& door : busy.fds) REQUIRE(::listen(door.get(), 0) == 0);
  const Address door = ways_to(busy.contact)[0];
  Dialer dialer({kGroupKey, HelloKind::kControl, 1, 0}, std::vector{door});
  for (int i = 0; i < 4; i++) queue.push_back(std::move(connect_start(door).value()));
  // A hello whose packet got lost a few times.
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
