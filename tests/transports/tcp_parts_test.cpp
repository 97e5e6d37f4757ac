// Parts of tcp's links, separately: waiting, silence, and the replacement of messages.
#include <sys/socket.h>

#include <utility>
#include <vector>

#include "testing.h"
#include "transports/tcp/tcp_link.h"

using namespace tutti;
using namespace tutti::test;

TEST_CASE("tcp: each connection of a receiver wakes who waits, also one in place of another") {
  tcp::Door door(tuttiEndpointConfig{sizeof(tuttiEndpointConfig), 1}, Listener{});
  std::vector<Fd> there;
  const auto connection = [&] {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    there.emplace_back(ends[1]);
    return tcp::SharedFd(Fd(ends[0]));
  };
  const bool is_pair = GENERATE(true, false);
  std::vector<tcp::SharedFd> connections{connection()};
  if (!is_pair) connections.push_back(connection());
  auto link = tcp::RecvLink::create(door, Ask{}, std::move(connections), 0);
  REQUIRE(link);
  if (is_pair) link.value()->receive_also_on(connection());
  const auto is_woken_by = [&](size_t i) {
    tuttiWait wait{-1};
    if (!link.value()->wait_begin(&wait) || wakes(wait, 20)) return false;
    REQUIRE(::send(there[i].get(), "x", 1, 0) == 1);
    return wakes(wait, kPatienceMs);
  };
  for (const size_t i : {0, 1, 0, 1}) CHECK(is_woken_by(i));
  if (is_pair) return;
  REQUIRE(link.value()->rejoin(0, connection()));
  for (const size_t i : {2, 1, 2}) CHECK(is_woken_by(i));
}

TEST_CASE("tcp: a connection is as fast as of late, whatever silence came between") {
  tcp::AckRate rate;
  const auto learn = [&](double bytes_per_second, double seconds) {
    constexpr double kTick = 0.01;
    for (double t = 0; t < seconds; t += kTick) rate.add(bytes_per_second * kTick, kTick);
  };
  rate.add(1e6, 0.001);
  CHECK(rate.bytes_per_second() == 0);  // too short for an estimate
  learn(50e6, 1);
  CHECK(rate.bytes_per_second() == Catch::Approx(50e6).epsilon(0.01));
  learn(0, 1.9);
  CHECK(rate.bytes_per_second() > 5e6);  // the connection may have recovered
  learn(50e6, 1);
  CHECK(rate.bytes_per_second() == Catch::Approx(50e6).epsilon(0.01));
  rate.add(64e3, 1.9);  // as seen by a rank that has computed meanwhile
  CHECK(rate.bytes_per_second() > 5e6);
  learn(1e6, 1);
  CHECK(rate.bytes_per_second() == Catch::Approx(1e6).epsilon(0.02));
  for (int i = 0; i < 20; i++) rate.add(i % 10 == 9 ? 1e6 : 0, 0.01);  // answers that take a while count
  CHECK(rate.bytes_per_second() == Catch::Approx(10e6).epsilon(0.3));
}

TEST_CASE("tcp: a connection that looks too slow for its part, and gets none, is tried again") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const Fd here(ends[0]), there(ends[1]);
  const bool is_loaded = GENERATE(true, false);
  tcp::Silence silence;
  silence.rate.add(1e5, 0.1);
  REQUIRE(silence.rate.bytes_per_second() == Catch::Approx(1e6));
  int64_t now = 1000 * tcp::kMs;
  for (int i = 0; i < 500; i++) silence.look(here.get(), now += 10 * tcp::kMs, is_loaded);
  const double after = silence.rate.bytes_per_second();
  CHECK(is_loaded == (after > 50e6));  // 1 % each time
  CHECK(is_loaded != (after == Catch::Approx(1e6)));
  silence.look(here.get(), now + 3'600'000 * tcp::kMs, is_loaded);  // there was nothing to do
  CHECK(silence.rate.bytes_per_second() < 1.02 * after);
}

TEST_CASE("tcp: a silence means a loss after many tries or three times the limit, and never where there is none") {
  constexpr int64_t kLimit = 20 * tcp::kMs;
  tcp::Silence silence;
  silence.silent_ns = kLimit;
  CHECK_FALSE(silence.lasts(kLimit));  // nothing awaits an answer
  silence.view.tcpi_probes = 3;
  CHECK(silence.lasts(kLimit));
  CHECK_FALSE(silence.lasts(kLimit + 1));
  CHECK_FALSE(silence.lasts(0));
  CHECK_FALSE(silence.means_loss(0));
  silence.view.tcpi_retransmits = 9;
  CHECK_FALSE(silence.means_loss(kLimit));
  silence.view.tcpi_retransmits = 10;
  CHECK(silence.means_loss(kLimit));
  silence.view.tcpi_retransmits = 1;
  silence.silent_ns = 3 * kLimit - 1;
  CHECK_FALSE(silence.means_loss(kLimit));
  silence.silent_ns = 3 * kLimit;
  CHECK(silence.means_loss(kLimit));
}

TEST_CASE("tcp: a half that ends does not take the place of one that has come meanwhile") {
  tcp::Door door(tuttiEndpointConfig{sizeof(tuttiEndpointConfig), 1}, Listener{});
  tcp::Pairs& pairs = door.pairs();
  const tuttiLinkConfig config = Ask{};
  const auto make = [&] {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    const Fd other(ends[1]);
    std::vector<tcp::SharedFd> connections;
    connections.emplace_back(Fd(ends[0]));
    auto link = tcp::RecvLink::create(door, config, std::move(connections), 0);
    REQUIRE(link);
    pairs.enter(link.value().get(), config);
    return std::move(link).value();
  };
  auto before = make(), after = make();
  CHECK(pairs.receiver(config) == after.get());
  before.reset();
  CHECK(pairs.receiver(config) == after.get());
  after.reset();
  CHECK(pairs.receiver(config) == nullptr);
}
