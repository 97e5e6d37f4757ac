// The rendezvous with ranks that are absent, wrong, dead or strangers.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "base/handshake.h"
#include "base/limits.h"
#include "catch.h"
#include "group/bootstrap.h"
#include "group/bootstrap_wire.h"
#include "own_signal.h"
#include "ranks.h"
#include "sanitized.h"

using namespace tutti;
using namespace tutti::test;

namespace {

UniqueId root() {
  return start_root(Deadline::after_seconds(60)).value();
}

Fate join_and_gather(const UniqueId& id, int rank, int n_ranks, double seconds = 60) {
  auto joined = Bootstrap::join(id, rank, n_ranks, Deadline::after_seconds(seconds));
  if (!joined) return fate_of(joined.error());
  const auto all = joined.value().all_gather("blob");
  return all ? Fate{} : fate_of(all.error());
}

// A connection to the root that sends nothing.
Fd silent_connection(const UniqueId& id) {
  auto fd = connect_start(loopback_of(id));
  int error = 0;
  while (fd && connect_finished(fd.value().get(), &error) == Code::kInProgress) std::this_thread::yield();
  return fd ? std::move(fd).value() : Fd();
}

}  // namespace

TEST_CASE("absent ranks are listed when the limit passes") {
  const UniqueId id = root();
  const auto fates =
      run_ranks<Fate>({0, 1, 2, 4, 5, 10, 11}, [&](int rank) { return join_and_gather(id, rank, 12, 3); });
  for (const Fate& fate : fates) {
    CHECK(fate.code == Code::kTimeout);
    CHECK(contains(fate.message, "ranks 3, 6-9 of 12 never joined"));
    CHECK(contains(fate.message, "TUTTI_INIT_TIMEOUT"));
    CHECK(fate.culprit == 3);
  }
}

TEST_CASE("the ranks' limit counts, though the root's own was shorter") {
  const auto id = start_root(Deadline::after_seconds(2));
  REQUIRE(id);
  const auto fates = run_ranks<Fate>({0, 1}, [&](int rank) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
    return join_and_gather(id.value(), rank, 2);
  });
  for (const Fate& fate : fates) {
    INFO(fate.message);
    CHECK(fate.code == Code::kSuccess);
  }
}

TEST_CASE("of ranks that wait for different times all hear who is absent when the first one gives up") {
  const UniqueId id = root();
  std::atomic<bool> is_patient_in{false};
  const auto fates = run_ranks<Fate>({0, 1}, [&](int rank) -> Fate {
    while (rank == 1 && !is_patient_in) std::this_thread::yield();
    auto joined = Bootstrap::join(id, rank, 3, Deadline::after_seconds(rank == 0 ? 20 : 2));
    is_patient_in = true;
    const auto all = joined ? joined.value().all_gather("") : joined.error();
    return all ? Fate{} : fate_of(all.error());
  });
  for (const Fate& fate : fates) {
    INFO(fate.message);
    CHECK(contains(fate.message, "rank 2 of 3 never joined"));
    CHECK(fate.culprit == 2);
  }
}

TEST_CASE("ranks that joined but do not answer are listed") {
  const UniqueId id = root();
  std::atomic<int> done{0};
  const auto fates = run_ranks<Fate>({0, 1, 2}, [&](int rank) -> Fate {
    auto joined = Bootstrap::join(id, rank, 3, Deadline::after_seconds(3));
    if (!joined) return fate_of(joined.error());
    if (rank == 1) {
      while (done != 2) std::this_thread::yield();
      return {};
    }
    const auto all = joined.value().all_gather("blob");
    done++;
    return all ? Fate{} : fate_of(all.error());
  });
  for (const int r : {0, 2}) {
    CHECK(fates[static_cast<size_t>(r)].code == Code::kTimeout);
    CHECK(contains(fates[static_cast<size_t>(r)].message, "rank 1 of 3 joined but did not answer"));
    CHECK(fates[static_cast<size_t>(r)].culprit == 1);
  }
}

TEST_CASE("two processes that claim one rank are both named, to everybody") {
  const bool has_agreed_port = GENERATE(false, true);
  const ReservedPort reserved = reserve_port();
  const auto deadline = Deadline::after_seconds(60);
  const UniqueId id = start_root(deadline, has_agreed_port ? reserved.port : uint16_t{0}).value();
  const int n_ranks = GENERATE(3, 30);  // directly, and through a relay
  const auto fates = run_ranks<Fate>({0, 1, 1}, [&](int rank) { return join_and_gather(id, rank, n_ranks); });
  for (const Fate& fate : fates) {
    CHECK(fate.code == Code::kInvalidUsage);
    CHECK(contains(fate.message, "rank 1 is claimed by two processes: host " + host_name()));
    CHECK(contains(fate.message, "pid " + std::to_string(getpid())));
    CHECK(contains(fate.message, "of two jobs") == has_agreed_port);
  }
  // A rank that comes late learns the reason, too.
  CHECK(contains(join_and_gather(id, 2, n_ranks).message, "claimed by two"));
}

TEST_CASE("ranks that disagree about their number are named") {
  const UniqueId id = root();
  std::atomic<int> n_ranks{3};
  const auto fates = run_ranks<Fate>({0, 1}, [&](int rank) { return join_and_gather(id, rank, n_ranks++); });
  for (const Fate& fate : fates) {
    CHECK(fate.code == Code::kInvalidUsage);
    CHECK(contains(fate.message, "disagree about the number of ranks"));
    CHECK(contains(fate.message, "says 3"));
    CHECK(contains(fate.message, "says 4"));
  }
}

TEST_CASE("arguments out of range are refused before anything is sent") {
  const UniqueId id = root();
  for (const auto& [rank, n_ranks] : {std::pair{-1, 2}, {2, 2}, {0, 0}, {0, kMaxRanks + 1}}) {
    const auto joined = Bootstrap::join(id, rank, n_ranks, Deadline::after_seconds(1));
    REQUIRE(!joined);
    CHECK(joined.error().code == Code::kInvalidArgument);
  }
}

TEST_CASE("a rank that dies between rounds is named to the others") {
  const UniqueId id = root();
  const int n_ranks = GENERATE(4, 12);  // directly, and through a relay
  const auto fates = run_ranks<Fate>(first_ranks(n_ranks), [&](int rank) -> Fate {
    auto joined = Bootstrap::join(id, rank, n_ranks, Deadline::after_seconds(60));
    if (!joined) return fate_of(joined.error());
    const auto first = joined.value().all_gather("one");
    if (!first) return fate_of(first.error());
    if (rank == 2) return {};  // closes its connection
    const auto second = joined.value().all_gather("two");
    return second ? Fate{} : fate_of(second.error());
  });
  for (const size_t r : {size_t{0}, size_t{1}, size_t{3}}) {
    INFO(fates[r].message);
    CHECK(fates[r].code == Code::kRemoteError);
    CHECK(fates[r].culprit == 2);
    CHECK(contains(fates[r].message, "rank 2 (host " + host_name()));
  }
}

namespace {

// The first half of a rank's connection to the root: the root lets it in.
Fd known_connection(const UniqueId& id, int rank) {
  const UniqueIdParts parts = unpack_unique_id(id).value();
  Fd fd = silent_connection(id);
  Handshake handshake =
      Handshake::client(derive_key(parts.secret, sizeof parts.secret), HelloKind::kBootstrap, rank, -1);
  while (handshake.advance(fd.get()) == Handshake::Status::kPending) std::this_thread::yield();
  return fd;
}

}  // namespace

TEST_CASE("a rank that leaves before anybody has said anything is named to the others") {
  const UniqueId id = root();
  const int leaver = GENERATE(0, 1, 2);
  const bool says_so = GENERATE(false, true);
  Fd leaving = known_connection(id, leaver);
  const std::string join = make_join_frame(make_join(leaver, 3, 60'000)), leave = make_frame(FrameKind::kLeave, "");
  REQUIRE(send_all(leaving.get(), join.data(), join.size(), Deadline::after_seconds(10)));
  std::atomic<int> joined_ranks{0};
  std::atomic<bool> left{false};
  const auto fates = run_ranks<Fate>({0, 1, 2}, [&](int rank) -> Fate {
    if (rank == leaver) {
      while (joined_ranks < 2) std::this_thread::yield();
      if (says_so) (void)send_all(leaving.get(), leave.data(), leave.size(), Deadline::after_seconds(10));
      leaving.reset();
      left = true;
      return {};
    }
    auto joined = Bootstrap::join(id, rank, 3, Deadline::after_seconds(60));
    joined_ranks++;
    if (!joined) return fate_of(joined.error());
    while (!left) std::this_thread::yield();
    const auto all = joined.value().all_gather("one");
    return all ? Fate{} : fate_of(all.error());
  });
  for (int r = 0; r < 3; r++) {
    if (r == leaver) continue;
    const Fate& fate = fates[static_cast<size_t>(r)];
    INFO(fate.message);
    CHECK(fate.code == Code::kRemoteError);
    CHECK(fate.culprit == leaver);
    CHECK(contains(fate.message, "rank " + std::to_string(leaver) + " (host "));
  }
}

TEST_CASE("a rank that speaks another version of the protocol is refused, and both versions are named") {
  const UniqueId id = root();
  const UniqueIdParts parts = unpack_unique_id(id).value();
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const Fd out(ends[0]), in(ends[1]);
  Handshake handshake = Handshake::client(derive_key(parts.secret, sizeof parts.secret), HelloKind::kBootstrap, 1, -1);
  REQUIRE(handshake.advance(out.get()) == Handshake::Status::kPending);
  Hello hello;
  REQUIRE(recv_all(in.get(), &hello, sizeof hello, Deadline::after_seconds(10)));
  const int ours = hello.version++;
  const Fd other = silent_connection(id);
  REQUIRE(send_all(other.get(), &hello, sizeof hello, Deadline::after_seconds(10)));
  const Fate fate = join_and_gather(id, 0, 2, 1);
  INFO(fate.message);
  CHECK(contains(fate.message, "rank 1 of 2 never joined; the root refused "));
  CHECK(contains(fate.message, format("speaks version %d of Tutti's wire protocol, this side %d: run the same version "
                                      "of Tutti on every rank",
                                      ours + 1, ours)));
}

TEST_CASE("who reads late gets all that the root has said") {
  constexpr size_t kRounds = 200;  // more than the kernel buffers for a rank that does not read
  const UniqueId id = root();
  const Fd fd = known_connection(id, 0);
  const int few = 64 << 10;  // else it would buffer 30 MB
  REQUIRE(setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &few, sizeof few) == 0);
  const Deadline deadline = Deadline::after_seconds(30);
  const std::string text(kMaxBlobBytes, 'x'), join = make_join_frame(make_join(0, 1, 60'000));
  const std::string blob = make_frame(FrameKind::kBlob, text);
  REQUIRE(send_all(fd.get(), join.data(), join.size(), deadline));
  for (size_t round = 0; round < kRounds; round++) REQUIRE(send_all(fd.get(), blob.data(), blob.size(), deadline));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the root has read all: only the kernel wakes it now
  const std::string packed(Blobs::pack(std::vector<std::string>{text}).bytes());
  const std::string answer = make_frame(FrameKind::kAll, packed);
  std::string got(answer.size(), '\0');
  for (size_t round = 0; round < kRounds; round++) {
    REQUIRE(recv_all(fd.get(), got.data(), got.size(), deadline));
    REQUIRE((got == answer));
  }
}

// The root may be a thread of the process that failed, which may end at once.
TEST_CASE("who could not join returns once the others have been told") {
  for (int group = 0; group < 100; group++) {  // often the root is quick enough anyway
    const UniqueId id = root();
    const Deadline deadline = Deadline::after_seconds(60);
    auto one =
        Bootstrap::join(id, 1, 2, deadline);  // first: a process's own ranks get answers in the order they came in
    auto zero = Bootstrap::join(id, 0, 2, deadline);
    REQUIRE((one && zero));
    std::thread other([&] { (void)one.value().all_gather(""); });
    (void)zero.value().all_gather("");
    other.join();
    REQUIRE_FALSE(one.value().is_broken());
    REQUIRE(fate_of(zero.value().conclude(Error{Code::kSystemError, "no memory"}).error()).message == "no memory");
    REQUIRE(one.value().is_broken());
    REQUIRE(contains(fate_of(one.value().conclude({}).error()).message, "could not join: no memory"));
  }
}

TEST_CASE("who could not join because of another rank is not blamed for it, else it is") {
  const int culprit = GENERATE(2, -1);
  const UniqueId id = root();
  const auto fates = run_ranks<Fate>({0, 1}, [&](int rank) {
    auto joined = Bootstrap::join(id, rank, 3, Deadline::after_seconds(60));
    if (!joined) return fate_of(joined.error());
    if (rank == 1) return fate_of(joined.value().conclude(Error{Code::kSystemError, "no way", culprit}).error());
    const auto all = joined.value().all_gather("");
    return all ? Fate{} : fate_of(all.error());
  });
  CHECK(fates[1].culprit == culprit);  // the rank's own error, unchanged
  CHECK(contains(fates[0].message, "rank 1 (host " + host_name()));
  CHECK(contains(fates[0].message, " could not join: no way"));
  CHECK(fates[0].culprit == (culprit < 0 ? 1 : culprit));
}

TEST_CASE("no signal handler of the program's runs in the root's thread") {
  const UniqueId id = root();
  CHECK(tutti_test::signal_comes_to_who_waits());
  CHECK(join_and_gather(id, 0, 1).message == "");
}

TEST_CASE("a connection that does not authenticate within seconds is closed; who has may join later than that") {
  const UniqueId id = root();
  const Fd known = known_connection(id, 0), silent = silent_connection(id);
  char byte = 0;
  const auto closed = recv_all(silent.get(), &byte, 1, Deadline::after_seconds(12));
  REQUIRE(!closed);
  INFO(closed.error().message);
  CHECK(closed.error().code == Code::kRemoteError);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the root has had time to close the other one, too
  const std::string said = make_join_frame(make_join(0, 2, 60'000)) + make_frame(FrameKind::kBlob, "blob");
  REQUIRE(send_all(known.get(), said.data(), said.size(), Deadline::after_seconds(10)));
  CHECK(join_and_gather(id, 1, 2, 10).message == "");
}

TEST_CASE("ranks that leave after the last round disturb nobody") {
  const UniqueId id = root();
  const auto fates = run_ranks<Fate>(first_ranks(8), [&](int rank) { return join_and_gather(id, rank, 8); });
  for (const Fate& fate : fates) CHECK(fate.message == "");
}

TEST_CASE("garbage on the root's port disturbs nobody") {
  const UniqueId id = root();
  std::vector<Fd> garbage;
  for (int i = 0; i < 20; i++) {
    garbage.push_back(silent_connection(id));
    REQUIRE(garbage.back());
    std::string bytes(static_cast<size_t>(1 + 37 * i), '\0');
    random_bytes(bytes.data(), bytes.size());
    REQUIRE(send_all(garbage.back().get(), bytes.data(), bytes.size(), Deadline::after_seconds(10)));
  }
  const auto fates = run_ranks<Fate>({0, 1, 2}, [&](int rank) { return join_and_gather(id, rank, 3); });
  for (const Fate& fate : fates) CHECK(fate.message == "");
}

TEST_CASE("hundreds of silent connections disturb nobody") {
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const int n = limit.rlim_cur > 1000 ? 300 : 100;  // both ends are in this process
  const UniqueId id = root();
  std::vector<Fd> silent;
  for (int i = 0; i < n; i++) {
    silent.push_back(silent_connection(id));
    REQUIRE(silent.back());
  }
  const auto fates = run_ranks<Fate>({0, 1, 2}, [&](int rank) { return join_and_gather(id, rank, 3); });
  for (const Fate& fate : fates) CHECK(fate.message == "");
}

TEST_CASE("an authenticated client that sends nonsense disturbs nobody who has not met it") {
  const UniqueId id = root();
  const UniqueIdParts parts = unpack_unique_id(id).value();
  const Key key = derive_key(parts.secret, sizeof parts.secret);
  const std::string nonsense[] = {make_frame(FrameKind::kJoin, "short"),
                                  make_frame(FrameKind::kBlob, "not joined"),
                                  make_frame(FrameKind::kAll, ""),
                                  make_join_frame(make_join(7, 3, 1000)),
                                  make_join_frame(make_join(0, 1 << 30, 1000)),
                                  std::string(64, '\xff')};
  for (const std::string& frame : nonsense) {
    const Fd fd = silent_connection(id);
    Handshake handshake = Handshake::client(key, HelloKind::kBootstrap, 0, -1);
    while (handshake.advance(fd.get()) == Handshake::Status::kPending) std::this_thread::yield();
    REQUIRE(send_all(fd.get(), frame.data(), frame.size(), Deadline::after_seconds(10)));
    char byte = 0;
    const auto closed = recv_all(fd.get(), &byte, 1, Deadline::after_seconds(30));
    REQUIRE(!closed);
    CHECK(closed.error().code == Code::kRemoteError);
  }
  const auto fates = run_ranks<Fate>({0, 1, 2}, [&](int rank) { return join_and_gather(id, rank, 3); });
  for (const Fate& fate : fates) CHECK(fate.message == "");
}

TEST_CASE("a wrong secret is named as the cause") {
  const UniqueId id = root();
  UniqueIdParts parts = unpack_unique_id(id).value();
  parts.secret[0] ^= 1;
  const Fate fate = join_and_gather(pack_unique_id(parts), 0, 1, 3);
  CHECK(fate.code == Code::kInvalidUsage);
  CHECK(contains(fate.message, "does not know this group's secret"));
}

TEST_CASE("who came with another secret is named, by address, beside the rank that never joined") {
  const UniqueId id = root();
  UniqueIdParts parts = unpack_unique_id(id).value();
  parts.secret[0] ^= 1;
  const auto fates = run_ranks<Fate>({0, 1}, [&](int rank) {
    return join_and_gather(rank == 0 ? id : pack_unique_id(parts), rank, 2, rank == 0 ? 3 : 2);
  });
  INFO(fates[0].message);
  CHECK(contains(fates[0].message, "rank 1 of 2 never joined; the root refused "));
  const bool is_v4 = loopback_of(id).family() == AF_INET;
  CHECK(contains(fates[0].message, is_v4 ? "127.0.0.1" : "[::1]"));
  CHECK(contains(fates[0].message, "does not know this group's secret (is TUTTI_SECRET"));
  CHECK(contains(fates[1].message, "does not know this group's secret"));
}

TEST_CASE("a root that has no descriptors for all ranks says so at once") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  Fate fate{Code::kTimeout, "", -1};
  // Repeated, because roots of earlier tests may close their descriptors meanwhile, and so leave enough.
  for (int tries = 0; tries < 20 && fate.code == Code::kTimeout; tries++) {
    const UniqueId id = root();
    rlimit few = before;
    few.rlim_cur = open_descriptors() + 6;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
    fate = join_and_gather(id, 0, 8, 1);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  }
  INFO(fate.message);
  CHECK(fate.code == Code::kSystemError);
  CHECK(contains(fate.message, "the group's root needs at least 7 more"));
}

TEST_CASE("a root that is not there is a time-out that says what was tried") {
  const ReservedPort reserved = reserve_port();
  const UniqueIdParts parts{resolve("127.0.0.1", reserved.port).value(), {1, 2, 3}};
  const Fate fate = join_and_gather(pack_unique_id(parts), 0, 1, 0.3);
  CHECK(fate.code == Code::kTimeout);
  CHECK(contains(fate.message, "127.0.0.1:" + std::to_string(reserved.port) + ": connect: Connection refused"));
}

TEST_CASE("something that listens but never answers is a time-out that says so") {
  uint16_t port = 0;
  const auto listener = listen_any(0, &port);
  REQUIRE(listener);
  const UniqueIdParts parts{resolve("127.0.0.1", port).value(), {1, 2, 3}};
  const Fate fate = join_and_gather(pack_unique_id(parts), 0, 1, 0.3);
  CHECK(fate.code == Code::kTimeout);
  CHECK(contains(fate.message, "127.0.0.1:" + std::to_string(port)));
}

TEST_CASE("reports survive the wire and damaged ones are refused") {
  const Error error = unpack_report(pack_report({Code::kRemoteError, "rank 3 is gone", 3}));
  CHECK(error.code == Code::kRemoteError);
  CHECK(error.message == "rank 3 is gone");
  CHECK(error.culprit_rank == 3);
  CHECK(unpack_report("abc").code == Code::kInternalError);
  CHECK(unpack_report(std::string(8, '\x7f')).code == Code::kInternalError);
}

#ifndef TUTTI_TEST_TSAN  // ThreadSanitizer does not follow forks of a process that has threads
TEST_CASE("who has no descriptor left for what all ranks have said says that") {
  constexpr int kRanks = 16;
  const UniqueId id = root();
  int relay_is_there[2];
  REQUIRE(::pipe(relay_is_there) == 0);
  const auto blob = [] {
    std::string bytes(1000, '\0');  // different blobs, so that together they are large enough for shared memory
    random_bytes(bytes.data(), bytes.size());
    return bytes;
  };
  const pid_t child = fork();
  if (child == 0) {  // the last rank, in its own process
    char byte;
    if (::read(relay_is_there[0], &byte, 1) != 1) _exit(2);
    auto joined = Bootstrap::join(id, kRanks - 1, kRanks, Deadline::after_seconds(60));
    if (!joined) _exit(3);
    rlimit none_left{};
    getrlimit(RLIMIT_NOFILE, &none_left);
    none_left.rlim_cur = static_cast<rlim_t>(Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get());
    setrlimit(RLIMIT_NOFILE, &none_left);
    const auto all = joined.value().all_gather(blob());
    _exit(!all && all.error().code == Code::kSystemError && contains(all.error().message, "ulimit -n") ? 0 : 1);
  }
  const auto fates = run_ranks<Fate>(first_ranks(kRanks - 1), [&](int rank) {
    auto joined = Bootstrap::join(id, rank, kRanks, Deadline::after_seconds(60));
    if (!joined) return fate_of(joined.error());
    if (rank == 0 && ::write(relay_is_there[1], "", 1) != 1) return Fate{Code::kSystemError, "no pipe"};
    const auto all = joined.value().all_gather(blob());
    return all ? Fate{} : fate_of(all.error());
  });
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  for (const int end : relay_is_there) ::close(end);
}
#endif
