// The rendezvous when all goes well.
#include "group/bootstrap.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/dial.h"
#include "catch.h"
#include "group/bootstrap_connect.h"
#include "group/bootstrap_relay.h"
#include "group/bootstrap_root.h"
#include "group/bootstrap_wire.h"
#include "ranks.h"
#include "sanitized.h"

using namespace tutti;
using namespace tutti::test;

namespace {

std::string blob_of(int rank, int round) {
  const size_t bytes = round == 0 ? static_cast<size_t>(rank % 7) * 100 : round == 1 ? 0 : 4000;
  return std::string(bytes, static_cast<char>('a' + (rank + round) % 26));
}

Fate three_rounds(const UniqueId& id, int rank, int n_ranks) {
  auto joined = Bootstrap::join(id, rank, n_ranks, Deadline::after_seconds(60));
  if (!joined) return fate_of(joined.error());
  for (int round = 0; round < 3; round++) {
    auto all = joined.value().all_gather(blob_of(rank, round));
    if (!all) return fate_of(all.error());
    if (all.value().size() != static_cast<size_t>(n_ranks)) return {Code::kInternalError, "wrong number of blobs"};
    for (int r = 0; r < n_ranks; r++)
      if (all.value()[static_cast<size_t>(r)] != blob_of(r, round)) return {Code::kInternalError, "wrong blob"};
  }
  return {};
}

}  // namespace

TEST_CASE("ranks join and gather blobs of all sizes") {
  const int n_ranks = GENERATE(1, 2, 5, 16, 64);
  INFO(n_ranks << " ranks");
  const auto id = start_root(Deadline::after_seconds(60));
  REQUIRE(id);
  const auto fates =
      run_ranks<Fate>(first_ranks(n_ranks), [&](int rank) { return three_rounds(id.value(), rank, n_ranks); });
  for (const Fate& fate : fates) {
    INFO(fate.message);
    CHECK(fate.code == Code::kSuccess);
  }
}

// One host goes to the first root, and nine to the other one. Eight of these go on to the first root, which keeps seven
// and sends the eighth to the host that came first; the ninth is sent to the host that came first to the other root.
TEST_CASE("another id's root sends the hosts of its share to each other") {
  const Deadline deadline = Deadline::after_seconds(60);
  Roots roots;
  roots.root = unpack_unique_id(start_root(deadline).value()).value();
  roots.key = derive_key(roots.root.secret, sizeof roots.root.secret);
  const UniqueIdParts other = unpack_unique_id(start_root(deadline).value()).value();
  std::atomic<bool> ends{false};
  std::vector<std::thread> relays;
  std::vector<RootConnection> up;
  std::vector<int> went_to;
  for (int host = 0; host < 10; host++) {
    Listener doors = Listener::open().value();
    JoinMessage me = make_join(host, 1000, 60'000);
    me.contact = doors.contact.to_bytes();
    auto connected = connect_relay(roots, me, deadline);
    REQUIRE(connected);
    went_to.push_back(connected.value().relay ? connected.value().relay->rank : -1);
    up.push_back(std::move(connected).value());
    roots.other = other;
    if (host > 1) continue;
    auto relay = std::make_unique<RelayServer>(std::move(doors.fds), roots.key, deadline, std::move(up.back()), me);
    relays.emplace_back([&ends, relay = std::move(relay)] {
      while (!ends) relay->turn(1);
    });
  }
  ends = true;
  for (std::thread& relay : relays) relay.join();
  CHECK(went_to == std::vector<int>{-1, -1, -1, -1, -1, -1, -1, -1, 0, 1});
}

// No rank joins it.
TEST_CASE("a further root ends some time after its first host has come") {
  const Deadline deadline = Deadline::after_seconds(60);
  Roots roots;
  roots.root = unpack_unique_id(start_root(deadline).value()).value();
  roots.key = derive_key(roots.root.secret, sizeof roots.root.secret);
  const UniqueId id = start_root(Deadline::after_seconds(3600), 0, nullptr, .1).value();
  roots.other = unpack_unique_id(id).value();
  const Address door = loopback_of(id);
  const auto is_open = [&] {
    const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&door.storage), door.length) == 0;
  };
  CHECK(is_open());
  JoinMessage me = make_join(0, 1000, 60'000);
  me.contact = Listener::open().value().contact.to_bytes();
  REQUIRE(connect_relay(roots, me, deadline));
  while (is_open() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(!is_open());
}

// The root keeps eight hosts and sends the others to these, whose doors are closed here.
TEST_CASE("a relay that cannot reach the one that it was sent to stays at the root") {
  const Deadline deadline = Deadline::after_seconds(60);
  Roots roots;
  roots.root = unpack_unique_id(start_root(deadline).value()).value();
  roots.key = derive_key(roots.root.secret, sizeof roots.root.secret);
  std::vector<RootConnection> up;
  for (int host = 0; host < 10; host++) {
    JoinMessage me = make_join(host, 1000, 60'000);
    me.contact = Listener::open().value().contact.to_bytes();
    auto connected = connect_relay(roots, me, deadline);
    REQUIRE(connected);
    CHECK(!connected.value().relay);
    up.push_back(std::move(connected).value());
  }
}

// The first rank waits for the root, and the others for that rank; longer than they would wait for a silent relay.
TEST_CASE("ranks that come long before the root reach it through their host's relay") {
  const ReservedPort reserved = reserve_port();
  REQUIRE(reserved.port != 0);
  Roots roots;
  roots.root = {resolve("127.0.0.1", reserved.port).value(), {1, 2, 3}};
  roots.key = derive_key(roots.root.secret, sizeof roots.root.secret);
  const auto ways = run_ranks<std::string>(first_ranks(4), [&](int rank) -> std::string {
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      const auto root = start_root(Deadline::after_seconds(10), reserved.port, roots.root.secret);
      return root ? "a relay" : root.error().message;
    }
    const auto connection = reach_root(roots, rank, 1000, Deadline::after_seconds(60));
    if (!connection) return connection.error().message;
    return connection.value().relay ? "a relay" : connection.value().how;
  });
  for (const std::string& way : ways) CHECK(way == "a relay");
}

// More than the root accepts at a time (256), while it is busy with those that are in. Each rank hears of each other:
// a thousand took 28 s of CPU time under ThreadSanitizer, more than half of all these tests.
TEST_CASE("a thousand ranks that come at once all meet") {
  constexpr int kRanks = kSanitized ? 384 : 1024;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit before = limit;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 4 * kRanks) {
    WARN("skipped: no more than " << limit.rlim_max << " descriptors here");
    return;
  }
  const auto id = start_root(Deadline::after_seconds(60));
  REQUIRE(id);
  std::vector<Fate> fates(kRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; rank++)
    ranks.emplace_back([&, rank] {
      auto joined = Bootstrap::join(id.value(), rank, kRanks, Deadline::after_seconds(60));
      const auto all = joined ? joined.value().all_gather(blob_of(rank, 0)) : joined.error();
      if (!all) fates[static_cast<size_t>(rank)] = fate_of(all.error());
      if (all && all.value().back() != blob_of(kRanks - 1, 0)) fates[static_cast<size_t>(rank)].message = "wrong blob";
      if (joined) (void)joined.value().conclude({});
    });
  for (std::thread& rank : ranks) rank.join();
  setrlimit(RLIMIT_NOFILE, &before);
  for (const Fate& fate : fates) REQUIRE(fate.message == "");
}

TEST_CASE("the largest blob passes and a larger one is refused before it is sent") {
  const auto id = start_root(Deadline::after_seconds(60));
  REQUIRE(id);
  auto joined = Bootstrap::join(id.value(), 0, 1, Deadline::after_seconds(60));
  REQUIRE(joined);
  const auto too_large = joined.value().all_gather(std::string(kMaxBlobBytes + 1, 'x'));
  REQUIRE(!too_large);
  CHECK(too_large.error().code == Code::kInvalidArgument);
  const auto all = joined.value().all_gather(std::string(kMaxBlobBytes, 'x'));
  REQUIRE(all);
  CHECK(all.value().back() == std::string(kMaxBlobBytes, 'x'));
}

TEST_CASE("IPv4 and IPv6 loopback both lead to a root whose port was given") {
  const std::string host = GENERATE("127.0.0.1", "::1");
  const auto address = resolve(host, 0);
  REQUIRE(address);
  if (!listen_on(address.value()[0], nullptr)) {
    WARN("skipped: no " << host << " here");
    return;
  }
  const ReservedPort reserved = reserve_port();
  REQUIRE(reserved.port != 0);
  const UniqueIdParts parts{resolve(host, reserved.port).value(), {1, 2, 3}};
  REQUIRE(start_root(Deadline::after_seconds(60), reserved.port, parts.secret));
  const auto fates = run_ranks<Fate>({0, 1}, [&](int rank) { return three_rounds(pack_unique_id(parts), rank, 2); });
  for (const Fate& fate : fates) CHECK(fate.message == "");
}

TEST_CASE("an address that does not answer costs a head start, not the group") {
  // On the same port 127.0.0.1 accepts and stays silent, and ::1 is the root.
  Address bound;
  const auto silent = listen_on(resolve("127.0.0.1", 0).value()[0], &bound);
  REQUIRE(silent);
  auto listener = listen_on(resolve("::1", bound.port()).value()[0], nullptr);
  if (!listener) {
    WARN("skipped: no ::1 here, or its port is taken");
    return;
  }
  UniqueIdParts parts{{bound, resolve("::1", bound.port()).value()[0]}, {1, 2, 3}};
  const Key key = derive_key(parts.secret, sizeof parts.secret);
  RootServer server(only(std::move(listener).value()), key, Deadline::after_seconds(60));
  std::thread root([&] { server.run(); });
  const auto connection = connect_to_root(parts, key, 0, Deadline::after_seconds(60));
  const Fate fate = three_rounds(pack_unique_id(parts), 0, 1);
  root.join();
  REQUIRE(connection);
  CHECK(contains(connection.value().how, "[::1]:" + std::to_string(bound.port()) + " (address 2 of 2"));
  CHECK(fate.message == "");
}

TEST_CASE("a rank that comes before the root waits for it") {
  const ReservedPort reserved = reserve_port();
  REQUIRE(reserved.port != 0);
  const UniqueIdParts parts{resolve("127.0.0.1", reserved.port).value(), {1, 2, 3}};
  const auto fates = run_ranks<Fate>({0, 1}, [&](int rank) -> Fate {
    if (rank == 1) return three_rounds(pack_unique_id(parts), rank, 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto started = start_root(Deadline::after_seconds(60), reserved.port, parts.secret);
    return started ? three_rounds(started.value(), rank, 2) : fate_of(started.error());
  });
  for (const Fate& fate : fates) CHECK(fate.message == "");
}

TEST_CASE("an id has the loopback's address only where there is no other") {
  const auto id = start_root(Deadline::after_seconds(60));
  REQUIRE(id);
  const std::vector<Address> all = unpack_unique_id(id.value()).value().addresses;
  const auto n = std::count_if(all.begin(), all.end(), [](const Address& a) { return a.is_loopback(); });
  CHECK((n == 0 || n == static_cast<std::ptrdiff_t>(all.size())));
}

TEST_CASE("all ranks of a group have the same key, another group has another") {
  const auto a = start_root(Deadline::after_seconds(60));
  const auto b = start_root(Deadline::after_seconds(60));
  REQUIRE(a);
  REQUIRE(b);
  const auto key = [](const UniqueId& id) {
    return Bootstrap::join(id, 0, 1, Deadline::after_seconds(60)).value().key();
  };
  CHECK(key(a.value()) != key(b.value()));
}

TEST_CASE("lists of ranks are compact") {
  CHECK(rank_list({}) == "");
  CHECK(rank_list({3}) == "3");
  CHECK(rank_list({3, 4}) == "3, 4");
  CHECK(rank_list({0, 3, 4, 5, 9}) == "0, 3-5, 9");
  std::vector<int> odd;
  for (int r = 1; r < 200; r += 2) odd.push_back(r);
  const std::string text = rank_list(odd);
  CHECK(contains(text, "1, 3, 5"));
  CHECK(contains(text, " and 68 more"));
}
