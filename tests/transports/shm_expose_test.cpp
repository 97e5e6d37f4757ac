// Exposed shared memory, and posted places: revoked while they are used.
#include <atomic>
#include <thread>

#include "base/shared_memory.h"
#include "traffic.h"
#include "transports/shm/shm_link.h"

using namespace tutti;
using namespace tutti::test;

TEST_CASE("shm: what is revoked cannot be read any more, what is mapped is waited for") {
  Pair p = make_pair(&kShmTransport);
  const std::string text(3000, 'x');
  REQUIRE(p.out.acquire() != nullptr);
  REQUIRE(p.out.publish(text.data(), static_cast<uint32_t>(text.size()), tuttiTag{}));
  tuttiMessage message{};
  REQUIRE(p.in.peek(&message));
  SECTION("before it was mapped") {
    p.out.revoke();
    auto data = p.in.read();
    REQUIRE_FALSE(data);
    CHECK(data.error().code == Code::kRemoteError);
    CHECK(contains(data.error().message, "rank 0"));
  }
  SECTION("by a sender that closes") {
    close(p.out);
    CHECK_FALSE(p.in.read());
  }
  SECTION("while it is mapped") {
    REQUIRE(static_cast<bool>(p.in.read()));
    std::atomic<bool> released{false}, revoked_early{false};
    std::thread reader([&] {
      usleep(20000);
      released = true;
      p.in.release();
    });
    p.out.revoke();
    revoked_early = !released;
    reader.join();
    CHECK_FALSE(revoked_early);
  }
  SECTION("by a receiver that fails in the middle") {
    REQUIRE(static_cast<bool>(p.in.read()));
    p.in.revoke();
    p.out.revoke();
  }
}

TEST_CASE("shm: a sender does not sleep when one of the memories that it exposes was read, until it has looked") {
  Pair p = make_pair(&kShmTransport, Ask{1, 0, 2, 4096});
  const std::string text(3000, 'x');
  for (int i = 0; i < 2; i++) {
    REQUIRE(p.out.acquire() != nullptr);
    REQUIRE(p.out.publish(text.data(), static_cast<uint32_t>(text.size()), tuttiTag{}));
  }
  CHECK(p.out.acquire() == nullptr);
  tuttiMessage message{};
  REQUIRE(p.in.peek(&message));
  REQUIRE(p.in.read());
  p.in.release();
  tuttiWait wait;
  CHECK_FALSE(p.out.wait_begin(&wait));  // it has a slot
  p.out.wait_end();
  CHECK(p.out.acquire() != nullptr);
  CHECK(p.out.wait_begin(&wait));
  p.out.wait_end();
}

TEST_CASE("shm: a message is written where it was expected, unless the receiver takes that back") {
  Pair p = make_pair(&kShmTransport);
  const std::string text(3000, 'x');
  std::string to(3000, '.');
  const auto bytes = static_cast<uint32_t>(text.size());
  const auto send = [&](bool placed) {
    void* const slot = p.out.acquire();
    REQUIRE(slot != nullptr);
    void* const place = posted_place(p.out, bytes);
    REQUIRE(place == (placed ? to.data() : nullptr));
    memcpy(placed ? place : slot, text.data(), bytes);
  };
  p.in.post(1, to.data(), bytes);
  send(false);
  p.out.publish(bytes, tuttiTag{});
  tuttiMessage message{};
  SECTION("the right one, and only with its length") {
    REQUIRE(p.out.acquire() != nullptr);
    CHECK(posted_place(p.out, bytes - 1) == nullptr);
    send(true);
    CHECK(p.out.unsent() == 0);
    p.out.publish(bytes, tuttiTag{});
    REQUIRE(p.in.peek(&message));
    CHECK(message.data != to.data());
    p.in.release();
    REQUIRE(p.in.peek(&message));
    CHECK(message.data == to.data());
    CHECK(to == text);
    p.in.release();
    send(false);
  }
  SECTION("before it was written") {
    p.in.revoke();
    send(false);
  }
  SECTION("while it is written") {
    send(true);
    std::atomic<bool> published{false};
    std::thread writer([&] {
      usleep(20000);
      published = true;
      p.out.publish(bytes, tuttiTag{});
    });
    p.in.revoke();
    const bool early = !published;
    writer.join();
    CHECK_FALSE(early);
  }
  SECTION("by a sender that fails in the middle") {
    send(true);
    p.out.revoke();
    p.in.revoke();
  }
  SECTION("by a sender that gives it up") {
    send(true);
    CHECK(p.out.acquire() != nullptr);
    p.in.revoke();
  }
}

namespace {

// A process that is rank 1: it has a link from this process, runs `body` with it, stops in the middle, and goes on.
struct Stopped {
  Endpoint mine;
  Child child;
  Link out;

  using Body = std::function<std::string(Link& in, const std::function<void()>& stop)>;
  explicit Stopped(const Body& body)
      : mine(open_endpoint(&kShmTransport, 0).value()), child([&](Mailbox& mail) -> std::string {
          auto a = open_endpoint(&kShmTransport, 1);
          Link in;
          if (!a || !mail.send(a.value().address())) return "no endpoint";
          if (!until([&] { return take(a.value(), &in); })) return "nobody connected";
          return body(in, [&] {
            mail.send("about to stop");
            raise(SIGSTOP);
          });
        }) {
    const auto address = child.mail().receive();
    REQUIRE(address);
    auto connected = mine.connect(Ask{1}, *address);
    REQUIRE(connected);
    out = std::move(connected).value();
    REQUIRE(until([&] { return poll_once(out).ready; }));
  }
  void wait_for_stop() {
    REQUIRE(child.mail().receive());
    int status = 0;
    REQUIRE(waitpid(child.pid(), &status, WUNTRACED) == child.pid());
    REQUIRE(WIFSTOPPED(status));
  }
  bool goes_on_and_ends_well() {
    kill(child.pid(), SIGCONT);
    return child.ended_well();
  }
};

}  // namespace

TEST_CASE("shm: who takes back what a process reads does not stop because that is stopped, and it learns of it later") {
  Stopped other([](Link& in, const std::function<void()>& stop) -> std::string {
    tuttiMessage message{};
    if (!until([&] { return in.peek(&message); })) return "no message";
    if (!in.read()) return "it cannot be mapped";
    if (!poll_once(in)) return "it was taken back too soon";
    stop();
    const Health health = poll_once(in);
    return !health && contains(health.error.text, "has failed there") ? "" : "it was not taken back";
  });
  auto memory = SharedMemory::allocate(10000);
  REQUIRE(memory);
  REQUIRE(other.out.acquire() != nullptr);
  REQUIRE(other.out.publish(memory.value(), 3000, tuttiTag{}));
  other.wait_for_stop();
  other.out.revoke();
  CHECK(other.goes_on_and_ends_well());
  close(other.out);
  SharedMemory::free(memory.value());
}

TEST_CASE("shm: who takes back a place that a process writes to does not stop because that is stopped") {
  auto here = open_endpoint(&kShmTransport, 1);
  REQUIRE(here);
  Child child(
      Child::sender(&kShmTransport, here.value().address(), Ask{1}, [](Link& out, Mailbox& mail) -> std::string {
        out.publish(0, tuttiTag{});
        mail.send("connected");
        if (!mail.receive() || out.acquire() == nullptr) return "no slot";
        if (posted_place(out, 3000) == nullptr) return "no place";
        mail.send("about to stop");
        raise(SIGSTOP);
        return "";
      }));
  Link in;
  REQUIRE(until([&] { return take(here.value(), &in); }));
  REQUIRE(child.mail().receive());
  auto memory = SharedMemory::allocate(10000);
  REQUIRE(memory);
  REQUIRE(in.post(1, memory.value(), 3000));
  REQUIRE(child.mail().send("go on"));
  REQUIRE(child.mail().receive());
  int status = 0;
  REQUIRE(waitpid(child.pid(), &status, WUNTRACED) == child.pid());
  REQUIRE(WIFSTOPPED(status));
  in.revoke();
  kill(child.pid(), SIGCONT);
  CHECK(child.ended_well());
  close(in);
  SharedMemory::free(memory.value());
}
