// A root and a relay, served by the test's own thread: what each connection hears, and in which order.
#include <poll.h>
#include <sys/socket.h>

#include "base/socket.h"
#include "catch.h"
#include "full_epoll.h"
#include "group/bootstrap_relay.h"
#include "group/bootstrap_root.h"
#include "ranks.h"

using namespace tutti;
using namespace tutti::test;

namespace {

constexpr Key kKey{7};

// With a unique name, so that nobody else connects.
struct Door {
  std::string name = "tutti-test-server-" + std::to_string(getpid());
  Fd listening = listen_unix_abstract(name).value();
};

// A connection to a server; while it waits it serves that server.
class Caller {
 public:
  Caller(FrameServer& server, Fd fd, int n_ranks)
      : server_(server), fd_(std::move(fd)), in_(most_bytes_of_all(n_ranks)) {}
  // A connection that has proved that it belongs to the group.
  Caller(FrameServer& server, const Door& door, int n_ranks)
      : Caller(server, std::move(connect_start(unix_abstract_address(door.name)).value()), n_ranks) {
    Handshake handshake = Handshake::client(kKey, HelloKind::kBootstrap, 0, -1);
    const Deadline deadline = Deadline::after_seconds(10);
    while (handshake.advance(fd_.get()) != Handshake::Status::kDone && !deadline.passed()) server_.turn(1);
    REQUIRE_FALSE(deadline.passed());
  }

  void say(const std::string& frame) {
    const Deadline deadline = Deadline::after_seconds(10);
    for (size_t at = 0; at < frame.size() && !deadline.passed(); server_.turn(0)) {
      const ssize_t n = ::send(fd_.get(), frame.data() + at, frame.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) at += static_cast<size_t>(n);
    }
    REQUIRE_FALSE(deadline.passed());
  }
  // Returns the next frame's kind, and leaves its content in `body`.
  FrameKind hear() {
    const Deadline deadline = Deadline::after_seconds(10);
    const auto some = [this](void* to, size_t room) { return ::recv(fd_.get(), to, room, MSG_DONTWAIT); };
    while (in_.read(some) == FrameReader::Status::kPending && !deadline.passed()) server_.turn(1);
    REQUIRE_FALSE(deadline.passed());
    body = in_.take_body();
    return in_.kind();
  }
  bool hears_nothing() {
    for (int i = 0; i < 10; i++) server_.turn(1);
    pollfd p{fd_.get(), POLLIN, 0};
    return ::poll(&p, 1, 0) == 0;
  }
  int rank() const { return in_.rank(); }
  void hang_up() { fd_.reset(); }

  std::string body;

 private:
  FrameServer& server_;
  Fd fd_;
  FrameReader in_;
};

// A relay's connection to a root, which is the test: *root is its end.
RootConnection connection_to(Fd* root) {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  RootConnection up;
  up.fd.reset(ends[0]);
  root->reset(ends[1]);
  return up;
}

JoinMessage join_of(int rank, int n_ranks, bool is_elsewhere) {
  JoinMessage join = make_join(rank, n_ranks, 60'000);
  join.pid += is_elsewhere ? 1 : 0;
  return join;
}

}  // namespace

// The process may end as soon as its ranks have their answer, and the root with it.
TEST_CASE("a root's own ranks hear after all others, and what those have heard they hear, too, whoever leaves then") {
  constexpr int kRanks = 16;  // together their blobs exceed what the kernel buffers for a rank that does not read
  Door door;
  RootServer root(only(std::move(door.listening)), kKey, Deadline::after_seconds(60));
  Caller elsewhere(root, door, kRanks), own(root, door, kRanks);
  const auto blob = [](int rank) {
    std::string bytes(kMaxBlobBytes, '\0');
    random_bytes(bytes.data(), bytes.size());
    return make_frame(FrameKind::kBlob, bytes, rank);
  };
  elsewhere.say(make_join_frame(join_of(1, kRanks, true), FrameKind::kRelay));
  CHECK(elsewhere.hear() == FrameKind::kRelay);
  own.say(make_join_frame(join_of(0, kRanks, false), FrameKind::kJoin));
  own.say(blob(0));
  for (int rank = 1; rank < kRanks; rank++) {
    elsewhere.say(make_join_frame(join_of(rank, kRanks, true), FrameKind::kJoin));
    elsewhere.say(blob(rank));
  }
  CHECK(own.hears_nothing());
  elsewhere.say(make_frame(FrameKind::kGone, "", 3));
  CHECK(own.hear() == FrameKind::kAll);
  CHECK(Blobs::open(own.body, kRanks));
  REQUIRE(own.hear() == FrameKind::kReport);
  CHECK(unpack_report(own.body).culprit_rank == 3);
  CHECK(elsewhere.hear() == FrameKind::kAll);
  CHECK(elsewhere.hear() == FrameKind::kReport);
}

TEST_CASE("of a relay that is lost the process itself is named, on the way up and on the way down") {
  constexpr int kRanks = 32;
  Fd root;
  RootConnection up = connection_to(&root);
  up.relay = make_join(5, kRanks, 60'000);
  Door door;
  RelayServer relay(only(std::move(door.listening)), kKey, Deadline::after_seconds(60), std::move(up),
                    make_join(0, kRanks, 60'000));
  Caller above(relay, std::move(root), kRanks), rank(relay, door, kRanks), below(relay, door, kRanks);
  CHECK(rank.hear() == FrameKind::kRelay);
  rank.say(make_join_frame(make_join(0, kRanks, 60'000)));
  CHECK(above.hear() == FrameKind::kJoin);
  CHECK(below.hear() == FrameKind::kRelay);
  below.say(make_join_frame(join_of(12, kRanks, true), FrameKind::kRelay));
  for (const int r : {10, 12, 11}) {
    below.say(make_join_frame(join_of(r, kRanks, true), FrameKind::kJoin));
    CHECK(above.hear() == FrameKind::kJoin);
  }
  below.hang_up();
  for (const int r : {12, 10, 11}) {
    CHECK(above.hear() == FrameKind::kGone);
    CHECK(above.rank() == r);
  }
  above.hang_up();
  REQUIRE(rank.hear() == FrameKind::kReport);
  CHECK(unpack_report(rank.body).culprit_rank == 5);
}

TEST_CASE("a relay waits for who has not said yet who it is, but not beyond its limit") {
  constexpr int kRanks = 32;
  Fd root;
  RootConnection up = connection_to(&root);
  Door door;
  const Deadline limit = Deadline::after_seconds(1), patience = Deadline::after_seconds(60);
  RelayServer relay(only(std::move(door.listening)), kKey, limit, std::move(up), make_join(0, kRanks, 60'000));
  Caller above(relay, std::move(root), kRanks), silent(relay, door, kRanks);
  CHECK(silent.hear() == FrameKind::kRelay);
  above.hang_up();
  for (int i = 0; i < 10; i++) relay.turn(1);
  CHECK((!relay.finished() || limit.passed()));
  while (!relay.finished() && !patience.passed()) relay.turn(10);
  CHECK(relay.finished());
}

TEST_CASE("a root serves whom the kernel had no memory to watch") {
  Door door;
  RootServer root(only(std::move(door.listening)), kKey, Deadline::after_seconds(60));
  std::optional<FullEpoll> full(std::in_place);
  Caller rank(root, door, 1);
  REQUIRE(full->refusals() > 0);
  full.reset();
  rank.say(make_join_frame(join_of(0, 1, false), FrameKind::kJoin));
  rank.say(make_frame(FrameKind::kBlob, "blob", 0));
  CHECK(rank.hear() == FrameKind::kAll);
}
