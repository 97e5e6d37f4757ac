// Links in both directions between two ranks share the lower rank's connection for small messages.
#include "sockets.h"
#include "traffic.h"

using namespace tutti;
using namespace tutti::test;

namespace {

constexpr uint32_t kSmall = 64, kLarge = 64 << 10;

// Ranks 0 and 1, in this thread. Links are destroyed before endpoints.
struct BothWays {
  std::set<int> before = connections();
  Endpoint ranks[2] = {open_endpoint(&kTcpTransport, 0).value(), open_endpoint(&kTcpTransport, 1).value()};
  Link out[2], in[2];  // of each rank

  explicit BothWays(uint32_t slots = 4, int first = 0) {
    for (const int from : {first, 1 - first}) open(from, slots);
  }
  void open(int from, uint32_t slots = 4) {
    REQUIRE(join(ranks[from], Ask{1 - from, 0, slots, kLarge}, ranks[1 - from], &out[from], &in[1 - from]));
  }
  // The connection of the link from that rank.
  Ends connection(int from) const {
    const auto ends = ends_of_link(before, Contact::from_bytes(ranks[1 - from].address())->addresses[0].port());
    REQUIRE(ends.size() == 1);
    return ends[0];
  }
  std::string exchange(uint64_t messages, uint32_t max_bytes) {
    const Traffic there{51, messages, max_bytes}, back{52, messages, max_bytes};
    Sender senders[] = {{out[0], there}, {out[1], back}};
    Receiver receivers[] = {{in[1], there}, {in[0], back}};
    return run_together({&senders[0], &receivers[0], &senders[1], &receivers[1]},
                        [&](Side&) { return mix(turn_++) % 8; });
  }
  std::string send_one(int from, uint32_t max_bytes) {
    const Traffic one{53, 1, max_bytes};
    Sender sender(out[from], one);
    Receiver receiver(in[1 - from], one);
    return run_together({&sender, &receiver});
  }

 private:
  uint64_t turn_ = 0;
};

}  // namespace

// Otherwise these tests would count one too many, once in some hundred pairs.
TEST_CASE("tcp: two connections to different ports that have one port of their own are told apart") {
  const std::set<int> before = connections();
  Address own = resolve("127.0.0.1", 0).value().at(0);
  std::vector<Fd> open;
  std::vector<uint16_t> ports;
  for (int i = 0; i < 2; i++) {
    Address bound;
    open.push_back(listen_on(resolve("127.0.0.1", 0).value().at(0), &bound).value());
    Fd from(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    setsockopt(from.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    REQUIRE(::bind(from.get(), reinterpret_cast<const sockaddr*>(&own.storage), own.length) == 0);
    own.set_port(port_of(from.get(), getsockname));
    REQUIRE(::connect(from.get(), reinterpret_cast<const sockaddr*>(&bound.storage), bound.length) == 0);
    Fd to = accept_one(open.back().get());
    REQUIRE(to);
    open.push_back(std::move(from));
    open.push_back(std::move(to));
    ports.push_back(bound.port());
  }
  for (const uint16_t port : ports) CHECK(ends_of_link(before, port).size() == 1);
}

TEST_CASE("tcp: what is small goes both ways by one connection, what is large by two") {
  BothWays pair(4, GENERATE(0, 1));
  const Ends lower = pair.connection(0), higher = pair.connection(1);
  REQUIRE(pair.exchange(10, kSmall) == "");  // whichever half was made first
  const uint64_t there = received_bytes(lower.to), back = received_bytes(lower.from), own = received_bytes(higher.to);
  REQUIRE(pair.exchange(100, kSmall) == "");
  CHECK(received_bytes(lower.to) > there + 100 * 48);
  CHECK(received_bytes(lower.from) > back + 100 * 48);
  CHECK(received_bytes(higher.to) == own);
  CHECK(received_bytes(higher.from) < 1000);  // just a handshake
  REQUIRE(pair.exchange(100, kLarge) == "");
  CHECK(received_bytes(higher.to) > own + 10 * kLarge);
  CHECK(received_bytes(lower.from) < back + 10 * kLarge);
}

TEST_CASE("tcp: messages of a pair arrive in order, whichever connection is sooner") {
  const uint32_t slots = GENERATE(2u, 3u, 8u);
  BothWays pair(slots);
  CHECK(pair.exchange(times(3000), kLarge) == "");
  CHECK(pair.exchange(times(3000), 8192) == "");
}

TEST_CASE("tcp: a half of a pair that closes leaves the other direction alone, and may come again") {
  const int from = GENERATE(0, 1);
  INFO("from rank " << from);
  BothWays pair;
  REQUIRE(pair.exchange(100, kLarge) == "");
  close(pair.out[from]);
  for (const uint32_t max_bytes : {kSmall, kLarge})
    for (int i = 0; i < 20; i++) REQUIRE(pair.send_one(1 - from, max_bytes) == "");
  close(pair.in[1 - from]);
  for (const uint32_t max_bytes : {kSmall, kLarge})
    for (int i = 0; i < 20; i++) REQUIRE(pair.send_one(1 - from, max_bytes) == "");
  pair.open(from);
  CHECK(pair.exchange(200, kLarge) == "");
}

TEST_CASE("tcp: a pair's rank that closes: all that it sent is received, then both halves fail") {
  const int gone = GENERATE(0, 1);
  INFO("rank " << gone);
  BothWays pair;
  REQUIRE(pair.exchange(100, kLarge) == "");
  const Traffic last{54, 4, kLarge};
  Sender sender(pair.out[gone], last);
  Receiver receiver(pair.in[1 - gone], last);
  REQUIRE(until([&] {
    sender.step();
    return poll_once(pair.in[1 - gone]) && sender.done();
  }));
  close(pair.out[gone]);
  close(pair.in[gone]);
  CHECK(run(receiver) == "");
  const std::string rank = format("rank %d", gone);
  check_gone(pair.in[1 - gone], rank);
  check_gone(pair.out[1 - gone], rank);
}

TEST_CASE("tcp: a connection of a pair that breaks is an error of both ranks") {
  const int of = GENERATE(0, 1);
  const bool at_sender = GENERATE(false, true);
  INFO("of the link from rank " << of << (at_sender ? ", at its sender" : ", at its receiver"));
  BothWays pair;
  REQUIRE(pair.exchange(100, kLarge) == "");
  const Ends ends = pair.connection(of);
  shutdown(at_sender ? ends.from : ends.to, SHUT_RDWR);
  check_gone(pair.out[of], format("rank %d", 1 - of));
  // A rank whose operation has failed closes its links.
  close(pair.out[of]);
  close(pair.in[of]);
  check_gone(pair.in[1 - of], format("rank %d", of));
  check_gone(pair.out[1 - of], format("rank %d", of));
}

TEST_CASE("tcp: what is no frame on the connection of the other direction fails the receiver") {
  BothWays pair;
  REQUIRE(pair.exchange(10, kLarge) == "");
  const Ends lower = pair.connection(0);
  const std::string nonsense(64, 'G');
  REQUIRE(::send(lower.to, nonsense.data(), nonsense.size(), MSG_NOSIGNAL) == 64);
  const auto error = poll_to_failure(pair.in[0]);
  REQUIRE(error);
  CHECK(contains(error->text, "rank 1"));
  CHECK(contains(error->text, "not a message"));
}
