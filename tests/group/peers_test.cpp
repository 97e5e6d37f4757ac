// Questions that a rank asks the others over the control connections: they are passed on, answered for all ranks, and
// nobody waits for the dead.
#include "group/peers.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <future>

#include "base/bytes.h"
#include "catch.h"
#include "failing_connect.h"
#include "group/bootstrap_wire.h"
#include "group/ranks.h"
#include "group/shrink_rendezvous.h"

using namespace tutti;
using tutti::test::run_ranks;

namespace {

using Watches = std::vector<std::shared_ptr<PeerWatch>>;

// Ranks in a row, each with its neighbours: 0 - 1 - 2. They run in this process and use `listeners`; they are connected
// by sockets, as if they were in different processes, or without.
Watches make_watches(const std::vector<PeerWatch::Listener>& listeners, std::vector<Contact>* contacts = nullptr,
                     bool with_sockets = true) {
  static uint64_t groups = 0;
  groups++;
  const auto n = static_cast<int>(listeners.size());
  std::vector<PeerWatch::Member> members;
  std::vector<Listener> sockets;
  for (int r = 0; r < n; r++) {
    auto socket = Listener::open();
    REQUIRE(static_cast<bool>(socket));
    members.push_back({"rank " + std::to_string(r), socket.value().contact, "here"});
    if (contacts != nullptr) contacts->push_back(socket.value().contact);
    sockets.push_back(std::move(socket.value()));
  }
  const auto watches = run_ranks<std::shared_ptr<PeerWatch>>(test::first_ranks(n), [&](int rank) {
    PeerWatch::Config config{.rank = rank, .n_ranks = n, .n_here = n, .key = derive_key("a secret", 8)};
    config.group = groups;
    if (!with_sockets) config.of_process = test::first_ranks(n);
    config.member = [members](int r) { return members[static_cast<size_t>(r)]; };
    if (rank > 0) config.neighbours.push_back(rank - 1);
    if (rank + 1 < n) config.neighbours.push_back(rank + 1);
    config.listener = listeners[static_cast<size_t>(rank)];
    auto watch =
        PeerWatch::create(config, std::move(sockets[static_cast<size_t>(rank)].fds), Deadline::after_seconds(60));
    return watch ? std::shared_ptr<PeerWatch>(std::move(watch.value())) : nullptr;
  });
  for (const auto& watch : watches) REQUIRE(watch != nullptr);
  return watches;
}

// From now on nothing arrives at this socket.
void lose_all(const Fd& fd) {
  sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog loses_all{1, &none};
  REQUIRE(setsockopt(fd.get(), SOL_SOCKET, SO_ATTACH_FILTER, &loses_all, sizeof loses_all) == 0);
}

// Waits until the watch's group has ended.
Error failure_of(PeerWatch& watch) {
  const Deadline deadline = Deadline::after_seconds(60);
  while (!watch.ending().failed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    REQUIRE_FALSE(deadline.passed());
  }
  return watch.ending().failure();
}

const Error kOtherwise{Code::kInvalidUsage, "the calls differ", 1};
constexpr int kLongMs = 100'000, kShortMs = 50;  // longer than the test, and very short

std::optional<PeerWatch::Answer> pass_on(std::string_view) {
  return PeerWatch::Answer{{}, true};
}

// A further control connection from `rank` to rank 0.
Dialer dial(int rank, const Contact& contact) {
  Dialer dialer({derive_key("a secret", 8), HelloKind::kControl, rank, 0}, contact);
  auto status = Dialer::Status::kPending;
  for (const Deadline deadline = Deadline::after_seconds(10); status == Dialer::Status::kPending && !deadline.passed();
       std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    status = dialer.advance();
  REQUIRE(status == Dialer::Status::kDone);
  return dialer;
}

}  // namespace

TEST_CASE("a question is passed on, and its answer ends the group for all") {
  const bool with_sockets = GENERATE(true, false);
  const auto answer = [](std::string_view question) {
    return std::optional(
        PeerWatch::Answer{Error{Code::kInvalidUsage, "an answer to " + std::string(question), 0}, false});
  };
  const Watches watches = make_watches({{}, pass_on, answer}, nullptr, with_sockets);
  watches[0]->ending().ask("who has others?", kOtherwise, kLongMs);
  for (const auto& watch : watches) {
    const Error failure = failure_of(*watch);
    CHECK(failure.code == Code::kInvalidUsage);
    const bool answered = watch == watches[2];
    CHECK(failure.message == (answered ? "" : "rank 2 reports: ") + std::string("an answer to who has others?"));
  }
}

TEST_CASE("a question that nobody answers ends the group with what its rank knows") {
  const auto ignore = [](std::string_view) { return std::optional(PeerWatch::Answer{}); };
  const Watches watches = make_watches({{}, ignore, {}});
  watches[0]->ending().ask("who has others?", kOtherwise, kShortMs);
  CHECK(watches[0]->ending().failed());
  CHECK(failure_of(*watches[0]).message == kOtherwise.message);
  for (const size_t r : {1u, 2u}) CHECK(failure_of(*watches[r]).message == "rank 0 reports: " + kOtherwise.message);
}

TEST_CASE("who asks a rank that dies says what it knows, and waits no longer") {
  const bool with_sockets = GENERATE(true, false);
  std::promise<void> heard;
  const auto ignore = [&](std::string_view) {
    heard.set_value();
    return std::optional(PeerWatch::Answer{});
  };
  Watches watches = make_watches({{}, ignore}, nullptr, with_sockets);
  std::thread asks([&] { watches[0]->ending().ask("who has others?", kOtherwise, kLongMs); });
  heard.get_future().wait();
  watches[1].reset();  // without a goodbye
  asks.join();
  CHECK(watches[0]->ending().failure().message == kOtherwise.message);
  CHECK(watches[0]->lost() == std::vector<int>{1});
}

TEST_CASE("a notice that blames a rank that is none is not believed") {
  const Watches watches = make_watches({pass_on, pass_on, pass_on});
  watches[0]->ending().fail({Code::kRemoteError, "somebody has died", 1 << 20});
  for (const size_t rank : {1, 2}) {
    const Error heard = failure_of(*watches[rank]);
    INFO(heard.message);
    CHECK(heard.culprit_rank >= -1);
    CHECK(heard.culprit_rank < 3);
  }
}

TEST_CASE("a question that makes no sense ends the group") {
  const auto refuse = [](std::string_view) { return std::optional<PeerWatch::Answer>(); };
  const Watches watches = make_watches({{}, refuse});
  watches[0]->ending().ask("?", kOtherwise, kLongMs);
  CHECK(failure_of(*watches[1]).code == Code::kRemoteError);
}

// A host of many ranks has no room to say when each came: the others would take a frame without a word for an error.
TEST_CASE("who has nothing to say says nothing") {
  std::promise<std::string> heard;
  const auto listen = [&](std::string_view said) {
    heard.set_value(std::string(said));
    return std::optional(PeerWatch::Answer{});
  };
  const Watches watches = make_watches({{}, listen});
  watches[0]->ending().tell("");
  watches[0]->ending().tell("something");
  CHECK(heard.get_future().get() == "something");
  CHECK_FALSE(watches[1]->ending().failed());
}

TEST_CASE("who has no descriptor left for those at the door does not watch it all the time") {
  std::vector<Contact> contacts;
  const Watches watches = make_watches({pass_on, pass_on}, &contacts);
  const auto& addresses = contacts[0].addresses;  // addresses beyond this host are closed by now
  const auto loopback = std::find_if(addresses.begin(), addresses.end(), [](auto& a) { return a.is_loopback(); });
  const Address& door = loopback != addresses.end() ? *loopback : addresses.at(0);
  const Fd knocks(::socket(door.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit usual{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &usual) == 0);
  rlimit none_left = usual;
  none_left.rlim_cur = static_cast<rlim_t>(Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get());
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none_left) == 0);
  CHECK(::connect(knocks.get(), reinterpret_cast<const sockaddr*>(&door.storage), door.length) == 0);
  const auto begin = clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const auto used = clock() - begin;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &usual) == 0);
  CHECK(used < CLOCKS_PER_SEC / 5);  // CPU time
}

TEST_CASE("a host is not taken for lost while there is no descriptor left to ask it") {
  Address door;
  const auto listener = listen_on(resolve("127.0.0.1", 0).value().at(0), &door);
  REQUIRE(listener);
  const Fd line = std::move(connect_start(door).value());
  const Fd other_end = accept_one(listener.value().get());
  REQUIRE(other_end);
  lose_all(other_end);
  lose_all(listener.value());
  Heartbeat heartbeat(line.get(), {door}, now_ns());
  constexpr int64_t kSilenceNs = 1'950'000'000;
  const auto is_silent_within = [&](double seconds) {
    bool is_silent = false;
    for (const Deadline end = Deadline::after_seconds(seconds); !is_silent && !end.passed();
         ::poll(nullptr, 0, Heartbeat::kTickMs)) {
      const int64_t now = now_ns();
      if (heartbeat.tick(now)) REQUIRE(::send(line.get(), "x", 1, 0) == 1);
      is_silent = heartbeat.silent_ns(now) >= kSilenceNs;
    }
    return is_silent;
  };
  rlimit usual{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &usual) == 0);
  rlimit none_left = usual;
  none_left.rlim_cur = STDERR_FILENO + 1;  // threads of earlier tests may close other ones meanwhile
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none_left) == 0);
  const bool was_silent = is_silent_within(4);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &usual) == 0);
  CHECK_FALSE(was_silent);
  CHECK(is_silent_within(30));  // now it is asked, and does not answer
}

TEST_CASE("a host is not taken for lost while there is no memory, or no port, left to ask it") {
  Address door;
  const auto listener = listen_on(resolve("127.0.0.1", 0).value().at(0), &door);
  REQUIRE(listener);
  const Fd line = std::move(connect_start(door).value());
  const Fd other_end = accept_one(listener.value().get());
  REQUIRE(other_end);
  lose_all(other_end);
  Heartbeat heartbeat(line.get(), {door}, now_ns());
  const tutti_test::FailingConnect failing(GENERATE(ENOBUFS, EADDRNOTAVAIL));
  bool is_asked = false;
  int64_t silent_ns = 0;
  for (const Deadline end = Deadline::after_seconds(1.6); !end.passed(); ::poll(nullptr, 0, Heartbeat::kTickMs)) {
    const int64_t now = now_ns();
    if (heartbeat.tick(now)) is_asked = ::send(line.get(), "x", 1, 0) == 1;
    silent_ns = std::max(silent_ns, heartbeat.silent_ns(now));
  }
  CHECK(is_asked);
  CHECK(silent_ns < 1'000'000'000);
}

TEST_CASE("of a connection whose network fails is said where else the host answers, but not while it works") {
  Address door, other;
  const auto listener = listen_on(resolve("127.0.0.1", 0).value().at(0), &door);
  const auto elsewhere = listen_on(resolve("127.0.0.1", 0).value().at(0), &other);
  REQUIRE((listener && elsewhere));
  const Fd line = std::move(connect_start(door).value());
  const Fd other_end = accept_one(listener.value().get());
  REQUIRE(other_end);
  lose_all(other_end);
  Heartbeat heartbeat(line.get(), {door, other}, now_ns());
  const auto finds_way_within = [&](double seconds) {
    for (const Deadline end = Deadline::after_seconds(seconds); !end.passed(); ::poll(nullptr, 0, Heartbeat::kTickMs)) {
      const int64_t now = now_ns();
      if (heartbeat.tick(now)) REQUIRE(::send(line.get(), "x", 1, 0) == 1);
      while (accept_one(listener.value().get()) || accept_one(elsewhere.value().get())) continue;
      if (const auto way = heartbeat.way_round(now)) return way->to_string() == other.to_string();
    }
    return false;
  };
  CHECK_FALSE(finds_way_within(4));  // only this connection is silent
  lose_all(listener.value());
  REQUIRE(finds_way_within(30));
  CHECK(heartbeat.lets_in());
  int refusals = 1;
  while (!heartbeat.note_refusal(now_ns())) refusals++;
  CHECK(refusals > 10);  // a few say nothing
}

TEST_CASE("a rank gets a few control connections and no more") {
  std::vector<Contact> contacts;
  const Watches watches = make_watches({pass_on, pass_on}, &contacts);  // each has one already
  std::vector<Fd> more;
  for (int i = 0; i < 8; i++) more.push_back(dial(1, contacts[0]).take());
  const auto is_closed = [](const Fd& fd) {
    char byte;
    const ssize_t n = ::recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN);
  };
  std::ptrdiff_t closed = 0;
  for (const Deadline deadline = Deadline::after_seconds(5); closed < 5 && !deadline.passed();
       std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    closed = std::count_if(more.begin(), more.end(), is_closed);
  CHECK(closed == 5);  // a rank may have four
  CHECK(!watches[0]->ending().failed());
}

TEST_CASE("a notice that a failed network may have lost goes over a new control connection, too") {
  std::vector<Contact> contacts;
  const Watches watches = make_watches({{}, {}}, &contacts);
  watches[0]->ending().fail({Code::kInvalidUsage, "it is over", 0});
  Dialer by_1 = dial(1, contacts[0]);
  Line of_1(1, by_1.take(), 4096, by_1.take_channel());
  auto status = FrameReader::Status::kPending;
  for (const Deadline deadline = Deadline::after_seconds(10);
       status == FrameReader::Status::kPending && !deadline.passed();
       std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    status = of_1.read();
  REQUIRE(status == FrameReader::Status::kFrame);
  CHECK(static_cast<PeerFrame>(of_1.in().kind()) == kNotice);
  CHECK(test::contains(of_1.in().take_body(), "it is over"));
}

// Another rank may report a loss before this rank's thread has read the lost rank's goodbye.
TEST_CASE("what a rank said itself counts before what others say of its loss") {
  std::promise<void> heard, goes_on, heard_all;
  int questions = 0;
  const auto listen = [&](std::string_view) {
    if (questions++ == 0) {
      heard.set_value();
      goes_on.get_future().wait();
    } else {
      heard_all.set_value();
    }
    return std::optional(PeerWatch::Answer{});
  };
  std::vector<Contact> contacts;
  const Watches watches = make_watches({listen, {}, {}}, &contacts);
  Dialer by_2 = dial(2, contacts[0]), by_1 = dial(1, contacts[0]);
  Line of_2(2, by_2.take(), 4096, by_2.take_channel()), of_1(1, by_1.take(), 4096, by_1.take_channel());
  of_2.send(kQuestion, "?");
  heard.get_future().wait();
  of_1.send(kGoodbye, ByteWriter().put(uint64_t{5}).take());
  of_2.send(kLoss, ByteWriter().put(int32_t{1}).take());
  of_2.send(kQuestion, "?");
  goes_on.set_value();
  REQUIRE(heard_all.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready);
  CHECK(watches[0]->lost().empty());
  CHECK(watches[0]->departed(1) == 5);
}

TEST_CASE("what a rank says after the news of its own loss is heard, and once") {
  std::promise<void> heard_all;
  std::string heard;
  const auto listen = [&](std::string_view question) {
    heard += question;
    if (question == "!") heard_all.set_value();
    return std::optional(PeerWatch::Answer{});
  };
  std::vector<Contact> contacts;
  const Watches watches = make_watches({listen, {}}, &contacts);
  Dialer by_1 = dial(1, contacts[0]);
  Line of_1(1, by_1.take(), 4096, by_1.take_channel());
  of_1.send(kQuestion, "a");
  of_1.send(kLoss, ByteWriter().put(int32_t{1}).take());
  for (const char* question : {"b", "c", "!"}) of_1.send(kQuestion, question);
  REQUIRE(heard_all.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready);
  CHECK(heard == "abc!");
  const Deadline deadline = Deadline::after_seconds(10);  // it has read on before it notes the loss
  while (watches[0]->lost().empty() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(watches[0]->lost() == std::vector{1});
}

TEST_CASE("two alarms at once are both known, and end") {
  const Watches watches = make_watches({{}, {}, {}});
  const Nonce a{1}, b{2};
  std::thread first([&] { watches[0]->agreement().alarm(a); });
  watches[2]->agreement().alarm(b);
  first.join();
  for (const auto& watch : watches) {
    const Deadline deadline = Deadline::after_seconds(10);
    while (!(watch->agreement().alarmed(a) && watch->agreement().alarmed(b)) && !deadline.passed())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK((watch->agreement().alarmed(a) && watch->agreement().alarmed(b)));
  }
}

TEST_CASE("who cannot wait for news for a while hears them afterwards") {
  std::atomic<int> heard = 0;
  const auto listen = [&](std::string_view) {
    heard++;
    return std::optional(PeerWatch::Answer{});
  };
  const Watches watches = make_watches({listen, listen});
  rlimit usual{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const rlimit none{0, usual.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);  // poll(2) refuses any descriptor
  watches[0]->ending().tell("news");              // wakes the other rank, which starts to wait again
  const Deadline deadline = Deadline::after_seconds(60);
  while (heard < 1 && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  REQUIRE(setrlimit(RLIMIT_NOFILE, &usual) == 0);
  watches[0]->ending().tell("more news");
  while (heard < 2 && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(heard == 2);
}

TEST_CASE("what is said to who does not read is thrown away at some time, and that is known") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const Fd reader(ends[1]);
  Line line(1, Fd(ends[0]), 1 << 20);
  const std::string much(4 << 20, 'x');
  int told = 0;
  while (told < 100 && line.send(kQuestion, much)) told++;
  CHECK(told > 10);
  CHECK(told < 100);
}

TEST_CASE("what is too long for a group's first meeting is too long for a later one") {
  const Watches watches = make_watches({{}});
  auto rendezvous = ShrinkRendezvous::gather(*watches[0], {}, false, Deadline::after_seconds(60));
  REQUIRE(rendezvous);
  REQUIRE(rendezvous.value().all_gather(std::string(kMaxBlobBytes, 'x')));
  const auto refused = rendezvous.value().all_gather(std::string(kMaxBlobBytes + 1, 'x'));
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kInvalidArgument);
}

TEST_CASE("who cannot join after a shrink is named by its old number, and knows its own reason") {
  const bool both = GENERATE(false, true);
  const Watches watches = make_watches({{}, {}, {}});
  std::vector<Key> keys(2);
  const auto ends = run_ranks<Error>({1, 2}, [&](int rank) -> Error {
    auto& watch = *watches[static_cast<size_t>(rank)];
    auto rendezvous = ShrinkRendezvous::gather(watch, {0}, false, Deadline::after_seconds(60));
    if (!rendezvous) return rendezvous.error();
    keys[static_cast<size_t>(rank) - 1] = rendezvous.value().key();
    const Error own{Code::kSystemError, "no memory for rank " + std::to_string(rank)};
    const bool fails = both || rank == 1;
    return rendezvous.value().conclude(fails ? Result<void>(own) : Result<void>()).error();
  });
  CHECK(ends[0].message == "no memory for rank 1");
  CHECK(ends[1].message == (both ? "no memory for rank 2" : "rank 1 could not join: no memory for rank 1"));
  CHECK(ends[1].culprit_rank == (both ? -1 : 1));
  CHECK((keys[0] == keys[1]));
  CHECK((keys[0] != watches[1]->key()));  // else late connections of the old group would belong to the new one
}

TEST_CASE("who cannot join after a shrink is no loss to be tried again, whatever the others take it for") {
  const Watches watches = make_watches({{}, {}, {}});
  const Error errors[] = {{Code::kRemoteError, "lost the control connection with rank 2", 2},
                          {Code::kSystemError, "no descriptor for rank 2"}};
  std::atomic<int> must_restart = 0;
  const auto ends = run_ranks<Error>({1, 2}, [&](int rank) -> Error {
    auto rendezvous =
        ShrinkRendezvous::gather(*watches[static_cast<size_t>(rank)], {0}, false, Deadline::after_seconds(60));
    if (!rendezvous) return rendezvous.error();
    const Error end = rendezvous.value().conclude(errors[rank - 1]).error();
    must_restart += rendezvous.value().must_restart() ? 1 : 0;
    return end;
  });
  CHECK(must_restart == 0);
  CHECK(ends[0].message == "rank 2 could not join: no descriptor for rank 2");
  CHECK(ends[1].message == "no descriptor for rank 2");
}

TEST_CASE("a control connection that cannot be made ends the wait for it, with the reason") {
  auto listener = Listener::open();
  REQUIRE(listener);
  PeerWatch::Config config{.rank = 1, .n_ranks = 3, .n_here = 3, .key = derive_key("a secret", 8)};
  Contact closed = listener.value().contact;
  config.member = [&](int r) { return PeerWatch::Member{"rank " + std::to_string(r), closed, "here"}; };
  const auto refusal = [&](int neighbour, double seconds, bool gives_up) {
    config.neighbours = {neighbour};
    const auto watch = PeerWatch::create(config, std::exchange(listener.value().fds, {}),
                                         Deadline::after_seconds(seconds), [&] { return gives_up; });
    return watch ? Error{} : watch.error();
  };
  const Error late = refusal(2, 0.05, false);  // rank 2, which has not called yet
  CHECK(late.code == Code::kTimeout);
  CHECK(late.message == "timed out waiting for a control connection with rank 2");
  const Error over = refusal(2, 5, true);
  CHECK(over.code == Code::kRemoteError);
  CHECK(over.message == "lost the control connection with rank 2");
  const Error refused = refusal(0, 5, false);
  CHECK(refused.code == Code::kRemoteError);
  CHECK(test::contains(refused.message, "rank 0 cannot be reached: "));
  CHECK(refused.culprit_rank == 0);
}
