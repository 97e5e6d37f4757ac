// Sleeping on a link: whatever lets it continue wakes it, and no wake-up is lost.
#include <cstring>
#include <thread>

#include "cpus.h"
#include "traffic.h"

using namespace tutti;
using namespace tutti::test;

namespace {

// Sleeps on `link` until it can continue: a message, or a slot. False if it was not woken.
bool sleep_until(Link& link, const std::function<bool()>& can_go_on) {
  return until([&] {
    if (can_go_on()) return true;
    tuttiWait wait;
    if (link.wait_begin(&wait)) wakes(wait, kPatienceMs);  // uses up the whole time if it is not woken
    link.wait_end();
    poll_once(link);
    return can_go_on();
  });
}

void publish_empty(Link& link) {
  REQUIRE(link.acquire() != nullptr);
  link.publish(0, tuttiTag{});
}

}  // namespace

TEST_CASE("nobody sleeps when there is something to do") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  Pair p = make_pair(t);
  tuttiWait wait;
  CHECK_FALSE(p.out.wait_begin(&wait));  // all slots are free
  p.out.wait_end();
  publish_empty(p.out);
  tuttiMessage message{};
  REQUIRE(until([&] { return poll_once(p.out) && poll_once(p.in) && p.in.peek(&message); }));
  CHECK_FALSE(p.in.wait_begin(&wait));
  p.in.wait_end();
  p.in.release();
  CHECK(p.in.wait_begin(&wait));
  CHECK((wait.fd >= 0 || wait.at_most_ns > 0));
  p.in.wait_end();
}

TEST_CASE("who waits is told on which CPU of this host the peer is") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  if (strcmp(t->name, "shm") != 0 && strcmp(t->name, "tcp") != 0) return;  // other transports do not know
  INFO(t->name);
  const std::vector<int> cpus = tutti_test::cpus_here();
  REQUIRE(!cpus.empty());
  Pair p = make_pair(t);
  for (const int cpu : cpus) {
    REQUIRE(tutti_test::stay_on({cpu}));
    tuttiWait wait;
    publish_empty(p.out);
    REQUIRE(until([&] { return poll_once(p.out) && p.out.unsent() == 0; }));
    p.out.wait_begin(&wait);
    p.out.wait_end();
    REQUIRE(tutti_test::stay_on(cpus));
    tuttiMessage message{};
    REQUIRE(until([&] { return poll_once(p.in) && p.in.peek(&message); }));
    p.in.release();
    p.in.wait_begin(&wait);
    p.in.wait_end();
    CHECK(wait.peer_cpu_plus_1 == static_cast<uint32_t>(cpu + 1));
  }
}

TEST_CASE("a message that was sent before or after wait_begin wakes the receiver") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  Pair p = make_pair(t);
  for (int i = 0; i < 100; i++) {
    if (i % 2 == 0) publish_empty(p.out);
    tuttiWait wait;
    const bool may_sleep = p.in.wait_begin(&wait);
    if (i % 2 == 1) publish_empty(p.out);
    REQUIRE(until([&] { return poll_once(p.out) && p.out.unsent() == 0; }));
    if (may_sleep) CHECK(wakes(wait, kPatienceMs));
    p.in.wait_end();
    tuttiMessage message{};
    REQUIRE(until([&] { return poll_once(p.in) && p.in.peek(&message); }));
    p.in.release();
  }
}

TEST_CASE("messages that came with others wake too") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  // More messages than slots are in flight at once; the receiver never polls before it sleeps.
  Pair p = make_pair(t, Ask{1, 0, 2, 64});
  uint32_t sent = 0, received = 0;
  while (received < 100) {
    if (sent == received)
      for (; sent < received + 20 && p.out.acquire() != nullptr; sent++) p.out.publish(0, tuttiTag{});
    tuttiMessage message{};
    const auto there = [&] { return poll_once(p.out) && p.in.peek(&message); };
    if (!there()) REQUIRE(sleep_until(p.in, there));
    while (p.in.peek(&message)) {
      p.in.release();
      received++;
    }
  }
}

TEST_CASE("a freed slot wakes the sender") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  Pair p = make_pair(t, Ask{1, 0, 2, 256 << 10});
  const Traffic traffic{1, ~uint64_t{0}, 256 << 10};
  Sender sender(p.out, traffic);
  Receiver receiver(p.in, traffic);
  for (int round = 0; round < 5; round++) {
    for (int idle = 0; idle < 1000; idle++) {
      if (sender.step()) idle = 0;
      REQUIRE(poll_once(p.in));
    }
    tuttiWait wait;
    const bool may_sleep = p.out.wait_begin(&wait) && (wait.fd >= 0 || wait.at_most_ns > 0);
    CHECK(may_sleep);
    const uint64_t had = sender.count();
    REQUIRE(until([&] {
      receiver.step();
      return receiver.count() + p.out.unsent() >= had;
    }));
    REQUIRE(poll_once(p.in));
    if (may_sleep) CHECK(wakes(wait, kPatienceMs));
    p.out.wait_end();
    CHECK(until([&] { return poll_once(p.in) && poll_once(p.out) && p.out.acquire() != nullptr; }));
  }
}

// It would sleep for 0.1 s if nothing else woke it.
TEST_CASE("a freed slot wakes the sender, also where a message the other way brings the news") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  Pair p = make_pair(t, Ask{1, 0, 4, 64});
  Link back_out, back_in;
  REQUIRE(join(p.receiver, Ask{0, 0, 4, 64}, p.sender, &back_out, &back_in));
  for (int i = 0; i < 4 && p.out.acquire() != nullptr; i++) publish_empty(p.out);
  tuttiMessage message{};
  REQUIRE(until([&] { return poll_once(p.out) && poll_once(p.in) && p.in.peek(&message); }));
  tuttiWait wait;
  const bool may_sleep = p.out.wait_begin(&wait) && (wait.fd >= 0 || wait.at_most_ns > 0);
  if (strcmp(t->name, "shm") == 0) CHECK(may_sleep);
  p.in.release();
  publish_empty(back_out);
  if (may_sleep) CHECK(until([&] { return poll_once(p.in) && poll_once(back_out) && wakes(wait, 10); }));
  p.out.wait_end();
  CHECK(until([&] { return poll_once(p.in) && poll_once(p.out) && p.out.acquire() != nullptr; }));
}

TEST_CASE("a peer that closes wakes whoever sleeps") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  const bool receiver_sleeps = GENERATE(true, false);
  INFO(t->name << (receiver_sleeps ? " receiver" : " sender"));
  Pair p = make_pair(t, Ask{1, 0, 2, 256 << 10});
  const Traffic traffic{1, ~uint64_t{0}, 256 << 10};
  Sender sender(p.out, traffic);
  for (int idle = 0; !receiver_sleeps && idle < 1000; idle++) {
    if (sender.step()) idle = 0;
    REQUIRE(poll_once(p.in));
  }
  Link& sleeper = receiver_sleeps ? p.in : p.out;
  Link& closer = receiver_sleeps ? p.out : p.in;
  tuttiWait wait;
  REQUIRE(sleeper.wait_begin(&wait));
  { const Link closed = std::move(closer); }
  CHECK(wakes(wait, kPatienceMs));
  sleeper.wait_end();
  CHECK(poll_to_failure(sleeper));
}

TEST_CASE("a link on its way can be slept on") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  auto a = open_endpoint(t, 0), b = open_endpoint(t, 1);
  REQUIRE((a && b));
  auto out = a.value().connect(Ask{}, b.value().address());
  REQUIRE(out);
  std::string trouble = "not accepted";
  Link in;
  std::thread other([&] {
    if (until([&] { return take(b.value(), &in); })) trouble = "";
  });
  const bool joined = until([&] {
    if (poll_once(out.value()).ready) return true;
    tuttiWait wait;
    if (out.value().wait_begin(&wait)) wakes(wait, 1000);
    out.value().wait_end();
    return false;
  });
  other.join();
  CHECK(joined);
  CHECK(trouble == "");
}

namespace {

// Two links, one token going round; both ends always sleep. The end that `begins` has it first.
std::string ping_pong(Link& out, Link& in, bool begins, uint64_t rounds) {
  uint64_t sleeps = 0;
  for (uint64_t i = 0; i < rounds; i++) {
    const Traffic one{i, 1, 64};
    Sender sender(out, one);
    Receiver receiver(in, one);
    if (begins)
      if (const std::string trouble = run(sender, true); !trouble.empty()) return "sending: " + trouble;
    if (const std::string trouble = run(receiver, true); !trouble.empty()) return "receiving: " + trouble;
    sleeps += receiver.sleeps();
    if (!begins)
      if (const std::string trouble = run(sender, true); !trouble.empty()) return "sending: " + trouble;
  }
  return sleeps > 0 ? "" : "nobody ever slept";
}

constexpr Ask kPing{1, 0, 2, 64}, kPong{0, 0, 2, 64};

}  // namespace

TEST_CASE("no wake-up is lost between threads") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  Pair p = make_pair(t, kPing);
  Link back_out, back_in;
  REQUIRE(join(p.receiver, kPong, p.sender, &back_out, &back_in));
  std::string trouble;
  std::thread other([&] { trouble = ping_pong(back_out, p.in, false, times(20000)); });
  CHECK(ping_pong(p.out, back_in, true, times(20000)) == "");
  other.join();
  CHECK(trouble == "");
}

TEST_CASE("no wake-up is lost between processes, nor between sleeping ends of a stream") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  auto a = open_endpoint(t, 0);
  REQUIRE(a);
  const std::string address = a.value().address();
  const Traffic traffic{4, times(20000), 64};
  Child child([&](Mailbox& mail) -> std::string {
    auto b = open_endpoint(t, 1);
    if (!b || !mail.send(b.value().address())) return "no endpoint";
    Link in;
    if (!until([&] { return take(b.value(), &in); })) return "nobody connected";
    auto out = b.value().connect(kPong, address);
    if (!out || !until([&] { return poll_once(out.value()).ready; })) return "could not connect";
    if (const std::string trouble = ping_pong(out.value(), in, false, times(5000)); !trouble.empty()) return trouble;
    Receiver receiver(in, traffic);
    return run(receiver, true);
  });
  const auto peer = child.mail().receive();
  REQUIRE(peer);
  auto out = a.value().connect(kPing, *peer);
  REQUIRE(out);
  Link in;
  REQUIRE(until([&] { return poll_once(out.value()).ready; }));
  REQUIRE(until([&] { return take(a.value(), &in); }));
  CHECK(ping_pong(out.value(), in, true, times(5000)) == "");
  Sender sender(out.value(), traffic);
  CHECK(run(sender, true) == "");
  CHECK(child.ended_well());
}

TEST_CASE("who looks at other links of the endpoint is woken all the same") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  Pair p = make_pair(t);
  Link other_out, other_in;
  REQUIRE(join(p.sender, Ask{1, 1}, p.receiver, &other_out, &other_in));
  tuttiWait wait;
  REQUIRE(p.in.wait_begin(&wait));
  publish_empty(p.out);
  REQUIRE(until([&] { return poll_once(p.out) && p.out.unsent() == 0; }));
  for (int i = 0; i < 1000; i++) REQUIRE(poll_once(other_in));
  CHECK(wakes(wait, 1000));
  p.in.wait_end();
}
