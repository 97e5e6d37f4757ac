// Messages arrive whole, in order, and only as fast as they are taken.
#include <sys/time.h>

#include <random>
#include <thread>

#include "traffic.h"

using namespace tutti;
using namespace tutti::test;

TEST_CASE("a stream by turns in one thread") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  const uint32_t slots = GENERATE(2u, 3u, 64u);
  INFO(t->name << " " << slots << " slots");
  Pair p = make_pair(t, Ask{1, 0, slots, 8192});
  const Traffic traffic{slots, times(20000), 8192};
  Sender sender(p.out, traffic);
  Receiver receiver(p.in, traffic);
  std::mt19937 random(slots);
  CHECK(run_together({&sender, &receiver}, [&](Side&) { return random() % (2 * slots); }) == "");
  tuttiMessage none{};
  CHECK_FALSE(p.in.peek(&none));
}

namespace {

void check_between_threads(Pair& p, const Traffic& traffic) {
  Sender sender(p.out, traffic);
  Receiver receiver(p.in, traffic);
  std::string trouble;
  std::thread other([&] { trouble = run(sender); });
  CHECK(run(receiver) == "");
  other.join();
  CHECK(trouble == "");
}

}  // namespace

TEST_CASE("200000 small messages between threads") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  const uint32_t slots = GENERATE(2u, 8u, 64u);
  INFO(t->name << " " << slots << " slots");
  Pair p = make_pair(t, Ask{1, 0, slots, 64});
  check_between_threads(p, {5, times(200000), 64});
}

TEST_CASE("large messages between threads") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  Pair p = make_pair(t, Ask{1, 0, 3, 8 << 20});
  check_between_threads(p, {6, std::max<uint64_t>(times(16), 6), 8 << 20});
}

TEST_CASE("many links of one endpoint at once") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  constexpr size_t kLinks = 12;
  Pair p = make_pair(t);
  std::vector<Link> out(kLinks), in(kLinks);
  for (uint32_t i = 0; i < kLinks; i++)
    REQUIRE(join(p.sender, Ask{1, i + 1, 2 + i % 3, 64 * (i + 1)}, p.receiver, &out[i], &in[i]));
  std::vector<std::unique_ptr<Side>> sides;
  std::vector<Side*> all;
  for (size_t i = 0; i < kLinks; i++) {
    const Traffic traffic{i, times(1000), in[i].config().slot_bytes};
    sides.push_back(std::make_unique<Sender>(out[i], traffic));
    sides.push_back(std::make_unique<Receiver>(in[i], traffic));
  }
  for (const auto& side : sides) all.push_back(side.get());
  std::mt19937 random(8);
  CHECK(run_together(all, [&](Side&) { return random() % 4; }) == "");
}

TEST_CASE("the same slot until publish, the same message until release") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  Pair p = make_pair(t);
  const Traffic traffic{7, 9, 4096};
  for (uint64_t i = 0; i < traffic.messages; i++) {
    void* slot = p.out.acquire();
    REQUIRE(slot != nullptr);
    REQUIRE(poll_once(p.out));
    CHECK(p.out.acquire() == slot);
    traffic.fill(i, slot);
    p.out.publish(traffic.bytes_of(i), traffic.tag_of(i));
    tuttiMessage first{}, second{};
    REQUIRE(until([&] { return poll_once(p.out) && poll_once(p.in) && p.in.peek(&first); }));
    REQUIRE(poll_once(p.in));
    REQUIRE(p.in.peek(&second));
    CHECK(second.data == first.data);
    CHECK(traffic.check(i, second) == "");
    p.in.release();
    CHECK_FALSE(p.in.peek(&second));
  }
}

TEST_CASE("a sender has all its slots without the receiver's doing, then stops, and goes on after release") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  const uint32_t slots = GENERATE(2u, 5u, 64u);
  INFO(t->name << " " << slots << " slots");
  const uint32_t slot_bytes = 128 << 10;
  Pair p = make_pair(t, Ask{1, 0, slots, slot_bytes});
  Traffic traffic{8, ~uint64_t{0}, slot_bytes};
  Sender sender(p.out, traffic);
  Receiver receiver(p.in, traffic);
  for (uint32_t i = 0; i < slots; i++) REQUIRE(sender.step());

  // The kernel buffers a finite amount in between. The receiving side moves bytes but releases nothing.
  const uint64_t limit = slots + (256u << 20) / slot_bytes;
  for (int idle = 0; idle < 1000 && sender.count() < limit; idle++) {
    if (sender.step()) idle = 0;
    REQUIRE(poll_once(p.in));
  }
  REQUIRE(sender.count() < limit);
  CHECK(p.out.acquire() == nullptr);
  CHECK(p.out.unsent() <= slots);

  const uint64_t stopped_at = sender.count();
  REQUIRE(until([&] {
    sender.step();
    receiver.step();
    return receiver.count() >= stopped_at + 10 || !(receiver.trouble() + sender.trouble()).empty();
  }));
  CHECK(receiver.trouble() == "");
  CHECK(sender.trouble() == "");
  CHECK(sender.count() >= stopped_at + 10);
}

TEST_CASE("unsent falls to zero by polling alone, and then the message is there") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  Pair p = make_pair(t, Ask{1, 0, 4, 32 << 20});
  CHECK(p.out.unsent() == 0);
  void* slot = p.out.acquire();
  REQUIRE(slot != nullptr);
  memset(slot, 3, 32 << 20);
  p.out.publish(32 << 20, tuttiTag{});
  CHECK(p.out.unsent() <= 1);
  REQUIRE(until([&] { return poll_once(p.in) && poll_once(p.out) && p.out.unsent() == 0; }));
  tuttiMessage message{};
  REQUIRE(until([&] { return poll_once(p.in) && p.in.peek(&message); }));  // without the sender, which has finished
  CHECK(message.bytes == 32 << 20);
}

namespace {

void on_alarm(int) {}

}  // namespace

TEST_CASE("signals in between do no harm") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  struct sigaction action {
  }, before{};
  action.sa_handler = on_alarm;  // without SA_RESTART, so that system calls are interrupted
  sigaction(SIGALRM, &action, &before);
  const itimerval often{{0, 300}, {0, 300}}, never{};
  setitimer(ITIMER_REAL, &often, nullptr);
  std::string sent, received;
  {
    Pair p = make_pair(t, Ask{1, 0, 2, 256 << 10});
    const Traffic traffic{9, times(500), 256 << 10};
    Sender sender(p.out, traffic);
    Receiver receiver(p.in, traffic);
    std::thread other([&] { sent = run(sender, true); });
    received = run(receiver, true);
    other.join();
  }
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  CHECK(sent == "");
  CHECK(received == "");
}
