// What an attacker on the network between two ranks can read, and what happens if the attacker changes bytes.
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <list>

#include "base/dial.h"
#include "beside.h"
#include "testing.h"
#include "transports/tcp/frame.h"

using namespace tutti;
using namespace tutti::test;

namespace {

const std::string kPattern = "a pattern that is in the message and nowhere else";

// Accepts connections and passes everything on, record by record if it must change some. No threads: step() moves it.
class Relay {
 public:
  explicit Relay(const std::string& address) : to_(Contact::from_bytes(address).value()) {
    Address loopback = to_.addresses.at(0), bound;
    for (const Address& a : to_.addresses)
      if (a.is_loopback()) loopback = a;
    real_ = loopback;
    loopback.set_port(0);
    listening_ = listen_on(loopback, &bound).value();
    to_.addresses = {bound};
  }
  std::string address() const { return to_.to_bytes(); }
  const std::string& seen() const { return seen_; }

  void step() {
    if (Fd caller = accept_one(listening_.get())) {
      connections_.emplace_back();
      connections_.back().ends[0] = std::move(caller);
      connections_.back().is_silent = is_silent;
      if (!is_silent) connections_.back().ends[1] = connect_start(real_).value();
    }
    for (Connection& c : connections_) {
      if (c.is_silent) continue;
      int error = 0;
      c.connected = c.connected || connect_finished(c.ends[1].get(), &error) == Code::kSuccess;
      if (c.connected) pass(c, 0), pass(c, 1);
    }
  }

  // Applied to the caller's bytes from now on.
  std::function<void(std::string* bytes)> change;
  // From now on: accepts callers, and sends them nothing.
  bool is_silent = false;
  void break_first() {
    for (const Fd& end : connections_.front().ends) shutdown(end.get(), SHUT_RDWR);
  }
  size_t callers() const { return connections_.size(); }

 private:
  struct Connection {
    Fd ends[2];
    bool connected = false, is_silent = false;
    std::string waiting[2];
  };
  void pass(Connection& c, int from) {
    char bytes[8192];
    const ssize_t n = ::recv(c.ends[from].get(), bytes, sizeof bytes, MSG_DONTWAIT);
    std::string& waiting = c.waiting[from];
    if (n > 0) {
      std::string got(bytes, static_cast<size_t>(n));
      seen_ += got;
      if (from == 0 && change) change(&got);
      waiting += got;
    }
    if (waiting.empty()) return;
    const ssize_t sent = ::send(c.ends[1 - from].get(), waiting.data(), waiting.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) waiting.erase(0, static_cast<size_t>(sent));
  }

  Contact to_;
  Address real_;
  Fd listening_;
  std::list<Connection> connections_;
  std::string seen_;
};

// A link from rank 0 to rank 1 through a relay.
struct Tapped {
  Endpoint sender, receiver;
  Relay relay;
  Link out, in;

  explicit Tapped(bool encrypts) : sender(open(0, encrypts)), receiver(open(1, encrypts)), relay(receiver.address()) {
    out = sender.connect(Ask{.slot_bytes = 1 << 20}, relay.address()).value();
    bool accepted = false;
    REQUIRE(until([&] {
      relay.step();
      if (!accepted) accepted = take(receiver, &in);
      return poll_once(out).ready && accepted;
    }));
  }
  static Endpoint open(int rank, bool encrypts) {
    const Setting setting("TUTTI_ENCRYPT", encrypts ? "1" : "0");
    return open_endpoint(&kTcpTransport, rank).value();
  }
  void send(const std::string& text) {
    REQUIRE(until([&] {
      relay.step();
      poll_once(out);
      return out.acquire() != nullptr;
    }));
    memcpy(out.acquire(), text.data(), text.size());
    out.publish(static_cast<uint32_t>(text.size()), {});
  }
  std::string receive() {
    tuttiMessage message{};
    REQUIRE(until([&] {
      relay.step();
      poll_once(out);
      REQUIRE(poll_once(in));
      return in.peek(&message);
    }));
    std::string text(static_cast<const char*>(message.data), message.bytes);
    in.release();
    return text;
  }
  std::string failure() {
    Health health;
    REQUIRE(until([&] {
      relay.step();
      poll_once(out);
      if (tuttiMessage message; in.peek(&message)) in.release();
      return !(health = poll_once(in));
    }));
    CHECK(health.error.code == tuttiRemoteError);
    return health.error.text;
  }
};

std::string large_text() {
  std::string text;
  while (text.size() < 300'000) text += kPattern + std::to_string(text.size());
  return text;
}

}  // namespace

TEST_CASE("tcp: what a relay sees has the text of messages unless they are encrypted", "[tcp]") {
  for (const bool encrypts : {false, true}) {
    CAPTURE(encrypts);
    Tapped link(encrypts);
    for (const std::string& text : {kPattern, large_text(), std::string("x"), std::string()}) {
      link.send(text);
      CHECK(link.receive() == text);
    }
    CHECK(link.relay.seen().size() > 300'000);
    CHECK(contains(link.relay.seen(), kPattern) != encrypts);
  }
}

TEST_CASE("tcp: an encrypted link whose bytes somebody changes fails and says whose it is", "[tcp]") {
  struct Deed {
    const char* name;
    std::function<void(std::string*)> change;
  };
  std::string before;
  const Deed deeds[] = {
      {"flips", [](std::string* bytes) { (*bytes)[bytes->size() / 2] ^= 1; }},
      {"flips the length", [](std::string* bytes) { (*bytes)[2] ^= 1; }},
      {"repeats", [](std::string* bytes) { *bytes += *bytes; }},
      {"leaves out", [](std::string* bytes) { bytes->erase(0, bytes->size() / 2); }},
      {"puts in", [](std::string* bytes) { bytes->insert(0, "some more"); }},
      {"sends an old one again",
       [&](std::string* bytes) {
         if (before.empty())
           before = *bytes;
         else
           *bytes = before;
       }},
  };
  for (const Deed& deed : deeds) {
    CAPTURE(deed.name);
    Tapped link(true);
    link.send("well");
    CHECK(link.receive() == "well");
    link.relay.change = deed.change;
    for (int i = 0; i < 3; i++) link.send(kPattern);
    const std::string why = link.failure();
    INFO(why);
    CHECK(contains(why, "tcp link from rank 0: "));
    CHECK(contains(why, "not what the other side sent"));
  }
}

TEST_CASE("tcp: who does not encrypt gets no link with who does, and is told", "[tcp]") {
  Endpoint plain = Tapped::open(0, false), encrypting = Tapped::open(1, true);
  Link out = plain.connect(Ask{}, encrypting.address()).value(), in;
  Health health;
  REQUIRE(until([&] {
    REQUIRE_FALSE(take(encrypting, &in));
    return !(health = poll_once(out));
  }));
  CHECK(contains(health.error.text, "rank 1 cannot be reached"));
}

TEST_CASE("tcp: a configuration that is too short to say so does not encrypt", "[tcp]") {
  tuttiEndpointConfig config{sizeof config, 0, 2, {}};
  memset(config.group_key, 7, sizeof config.group_key);
  config.struct_bytes = offsetof(tuttiEndpointConfig, encrypt);
  config.encrypt = 1;  // garbage behind the end of the shorter struct
  auto shorter = Endpoint::open(&kTcpTransport, config);
  REQUIRE(shorter);
  Endpoint plain = Tapped::open(1, false);
  Link out, in;
  CHECK(join(shorter.value(), Ask{}, plain, &out, &in));
}

TEST_CASE("with encryption no transport is used that cannot encrypt", "[plugin]") {
  const Setting plugin("TUTTI_TRANSPORT_PLUGIN", tutti_test::beside_program("unix_plugin.so").c_str());
  REQUIRE(find_transports("tcp,unix"));
  const auto named = find_transports("tcp,unix", true);
  REQUIRE_FALSE(named);
  CHECK(contains(named.error().message, "'unix'"));
  CHECK(contains(named.error().message, "TUTTI_ENCRYPT"));
  const auto all = find_transports("", true);
  REQUIRE(all);
  CHECK(all.value() == std::vector{&kShmTransport, &kTcpTransport});
}

// Takes 32 s.
TEST_CASE("tcp: who is dialled again and never answers is dialled once more", "[tcp][long]") {
  const Setting two("TUTTI_TCP_CONNECTIONS", "2");
  Tapped link(false);
  const auto called = [&](size_t n) {
    return until(Deadline::after_seconds(60), [&] {
      link.relay.step();
      poll_once(link.out);
      poll_once(link.in);
      return link.relay.callers() == n;
    });
  };
  link.relay.is_silent = true;
  link.relay.break_first();
  REQUIRE(called(3));
  link.relay.is_silent = false;
  CHECK(called(4));
}
