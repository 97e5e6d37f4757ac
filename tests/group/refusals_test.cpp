// A rank whose process ends while its connection's network has failed: nothing tells of its death but refusals.
#include <linux/filter.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

#include "catch.h"
#include "group/peers.h"
#include "group/ranks.h"

using namespace tutti;

namespace {

// From now on nothing arrives at this socket.
void silence(const Fd& fd) {
  sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog loses_all{1, &none};
  REQUIRE(setsockopt(fd.get(), SOL_SOCKET, SO_ATTACH_FILTER, &loses_all, sizeof loses_all) == 0);
}

// A control connection to rank 0 from rank 1.
Dialer call_rank_0(const Key& key, const Address& at) {
  Dialer dialer({key, HelloKind::kControl, 1, 0}, std::vector{at});
  auto status = Dialer::Status::kPending;
  for (const Deadline deadline = Deadline::after_seconds(30); status == Dialer::Status::kPending && !deadline.passed();
       std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    status = dialer.advance();
  REQUIRE(status == Dialer::Status::kDone);
  return dialer;
}

}  // namespace

// Rank 0 is a watch, rank 1 this test, on another host by its contact.
TEST_CASE("a rank that dies while its control connection's network is silent is lost where its other doors refuse") {
  auto mine = Listener::open();
  REQUIRE(mine);
  const auto& addresses = mine.value().contact.addresses;
  const auto loopback = std::find_if(addresses.begin(), addresses.end(), [](auto& a) { return a.is_loopback(); });
  REQUIRE(loopback != addresses.end());
  Address silent = *loopback, refusing = resolve("0.0.0.0", 0).value().at(0);  // no loopback, but leads to this host
  silent.set_port(0);
  const auto listener = listen_on(silent, &silent);
  REQUIRE(listener);
  const test::ReservedPort nobody = test::reserve_port();
  refusing.set_port(nobody.port);
  const Contact theirs{HostId{}, {silent, refusing}};
  PeerWatch::Config config{.rank = 0, .n_ranks = 3, .n_here = 2, .key = derive_key("a secret", 8)};
  config.neighbours = {1};
  config.member = [&](int r) {
    return PeerWatch::Member{"rank " + std::to_string(r), r == 1 ? theirs : mine.value().contact, "here"};
  };
  auto created = std::async(std::launch::async, [&] {
    return PeerWatch::create(config, std::move(mine.value().fds), Deadline::after_seconds(60));
  });
  Dialer dialer = call_rank_0(config.key, *loopback);
  const auto watch = created.get();
  REQUIRE(watch);
  const Fd line = dialer.take();
  silence(line);
  silence(listener.value());
  const Ending& ending = watch.value()->ending();
  ending.wait(60'000);
  REQUIRE(ending.failed());
  CHECK(test::contains(ending.failure().message, "rank 1 died: its connections broke"));
  CHECK(watch.value()->lost() == std::vector{1});
}
