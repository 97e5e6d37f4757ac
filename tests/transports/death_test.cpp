// Peers that close, and processes that die: messages sent before are received, then an error names the rank.
#include "traffic.h"

using namespace tutti;
using namespace tutti::test;

TEST_CASE("what was published before the sender closed is received, then the link fails") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  const uint32_t slots = GENERATE(2u, 7u);
  INFO(t->name << " " << slots << " slots");
  Pair p = make_pair(t, Ask{1, 0, slots, 64 << 10});
  const Traffic traffic{21, slots, 64 << 10};
  Sender sender(p.out, traffic);
  Receiver receiver(p.in, traffic);
  REQUIRE(until([&] {
    sender.step();
    return (poll_once(p.in) && sender.done()) || !sender.trouble().empty();
  }));
  close(p.out);
  // However often the receiver has looked before.
  for (int i = 0; i < 500; i++) REQUIRE(poll_once(p.in));
  CHECK(run(receiver) == "");
  check_gone(p.in, "rank 0");
}

TEST_CASE("a receiver that closes: the sender learns it by polling, and no signal kills it") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  const bool idle = GENERATE(true, false);
  INFO(t->name << (idle ? ", idle" : ", sending"));
  Pair p = make_pair(t);
  const Traffic traffic{22, ~uint64_t{0}, 4096};
  Sender sender(p.out, traffic);
  for (int i = 0; i < 3 && !idle; i++) REQUIRE(sender.step());
  close(p.in);
  REQUIRE(until([&] { return idle || !sender.step(); }));
  check_gone(p.out, "rank 1");
}

TEST_CASE("an endpoint closes with messages on their way") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  for (int round = 0; round < 20; round++) {
    Pair p = make_pair(t, Ask{1, 0, 4, 1 << 20});
    const Traffic traffic{23, 4, 1 << 20};
    Sender sender(p.out, traffic);
    while (sender.count() < 4 && sender.step()) {
    }
    CHECK(sender.count() > 0);
    CHECK(sender.trouble() == "");
  }
}

namespace {

// A process that is rank 0: it has a link to and from this process and then runs `body`, until it is killed.
struct Victim {
  Endpoint mine;
  Child child;
  Link in, out;  // from rank 0, and to it

  using Body = std::function<std::string(Link& out, Link& in)>;
  static std::string live(const tuttiTransport* t, const std::string& peer, const Ask& ask, Mailbox& mail,
                          const Body& body) {
    auto a = open_endpoint(t, 0);
    if (!a || !mail.send(a.value().address())) return "no endpoint";
    auto out = a.value().connect(ask, peer);
    Link in;
    if (!out || !until([&] { return poll_once(out.value()).ready; })) return "could not connect";
    if (!until([&] { return take(a.value(), &in); })) return "nobody connected";
    return body(out.value(), in);
  }
  Victim(const tuttiTransport* t, const Ask& ask, const Body& body)
      : mine(open_endpoint(t, 1).value()),
        child([&, peer = mine.address()](Mailbox& mail) { return live(t, peer, ask, mail, body); }) {
    const auto address = child.mail().receive();
    REQUIRE(address);
    REQUIRE(until([&] { return take(mine, &in); }));
    auto connected = mine.connect(Ask{0}, *address);
    REQUIRE(connected);
    out = std::move(connected).value();
    REQUIRE(until([&] { return poll_once(out).ready; }));
  }
};

// Sends without end.
std::string stream(Link& out, const Traffic& traffic) {
  Sender sender(out, traffic);
  return run(sender, true);
}

}  // namespace

TEST_CASE("an idle peer is killed: both links to it fail") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  Victim victim(t, Ask{}, [](Link&, Link&) {
    for (;;) pause();
    return "";
  });
  for (int i = 0; i < 500; i++) {
    REQUIRE(poll_once(victim.in));
    REQUIRE(poll_once(victim.out));
  }
  victim.child.kill_now();
  check_gone(victim.in, "rank 0");
  check_gone(victim.out, "rank 0");
}

TEST_CASE("a peer is killed in the middle of a stream: all that arrived is whole") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  const uint32_t slot_bytes = GENERATE(64u, 4096u, 4u << 20);  // many messages at a time; one that takes a while
  const bool asleep = GENERATE(false, true);
  INFO(t->name << " slots of " << slot_bytes << (asleep ? ", asleep" : ""));
  const Traffic traffic{24, ~uint64_t{0}, slot_bytes};
  Victim victim(t, Ask{1, 0, 4, slot_bytes}, [&](Link& out, Link&) { return stream(out, traffic); });
  Receiver receiver(victim.in, traffic);
  const uint64_t enough = slot_bytes > 4096 ? 5 : times(5000);
  REQUIRE(run(receiver, asleep, enough) == "");
  victim.child.kill_now();
  const std::string trouble = run(receiver, asleep);
  INFO(trouble);
  CHECK(contains(trouble, "rank 0"));
  check_gone(victim.in, "rank 0");
}

TEST_CASE("a peer that does not receive is killed: the sender, awake or asleep, learns it") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  const bool asleep = GENERATE(false, true);
  INFO(t->name << (asleep ? ", asleep" : ""));
  Victim victim(t, Ask{}, [](Link&, Link&) {
    for (;;) pause();
    return "";
  });
  const Traffic traffic{25, ~uint64_t{0}, 4096};
  Sender sender(victim.out, traffic);
  for (int idle = 0; idle < 1000; idle++)
    if (sender.step()) idle = 0;
  CHECK(sender.trouble() == "");
  victim.child.kill_now();
  CHECK(contains(run(sender, asleep), "rank 0"));
  check_gone(victim.out, "rank 0");
}

TEST_CASE("a peer is killed while it connects: others still can") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  const int accepts = GENERATE(0, 1, 2, 3);  // the progress of its handshake
  INFO(t->name << ", accepted " << accepts << " times");
  auto b = open_endpoint(t, 1, 3);
  REQUIRE(b);
  const std::string address = b.value().address();
  Child child([&](Mailbox& mail) -> std::string {
    auto a = open_endpoint(t, 0, 3);
    auto out = a.value().connect(Ask{}, address);
    if (!out || !poll_once(out.value())) return "could not connect";
    for (;;) {
      poll_once(out.value());
      if (!mail.send("polled") || !mail.receive()) return "alone";
    }
  });
  Link in;
  for (int i = 0; i < accepts; i++) {
    REQUIRE(child.mail().receive());
    take(b.value(), &in);
    REQUIRE(child.mail().send("go on"));
  }
  REQUIRE(child.mail().receive());
  child.kill_now();
  // A link that was made nevertheless fails like any other.
  if (take(b.value(), &in)) check_gone(in, "rank 0");
  auto c = open_endpoint(t, 2, 3);
  REQUIRE(c);
  Link out, good;
  REQUIRE(join(c.value(), Ask{}, b.value(), &out, &good));
  CHECK(good.peer() == 2);
}
