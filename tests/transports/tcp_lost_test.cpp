// Links of several TCP connections, some of which break, at any time and from either side: nothing else is lost.
#include <linux/filter.h>

#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "sockets.h"
#include "traffic.h"

using namespace tutti;
using namespace tutti::test;

namespace {

// Whether payload has come over it, not just a handshake.
bool carries(const Ends& ends) {
  return received_bytes(ends.to) > 100'000;
}

struct Fragile {
  std::set<int> before;
  Pair pair;
  std::vector<Ends> ends;

  // The current connections.
  std::vector<Ends> find() const {
    return ends_of_link(before, Contact::from_bytes(pair.receiver.address())->addresses[0].port());
  }
};
Fragile make_fragile(const Ask& ask, size_t n) {
  const Setting several("TUTTI_TCP_CONNECTIONS", std::to_string(n).c_str());
  std::set<int> before = connections();
  Fragile fragile{std::move(before), make_pair(&kTcpTransport, ask), {}};
  // For a moment a porter has a descriptor of each, too.
  REQUIRE(until([&] { return (fragile.ends = fragile.find()).size() == n; }));
  return fragile;
}

// Data that have arrived stay readable. If it is the receiver's end, data that arrive later are answered with a reset.
void break_connection(std::vector<Ends>& ends, std::mt19937& random) {
  const size_t i = random() % ends.size();
  shutdown(random() % 2 == 0 ? ends[i].from : ends[i].to, SHUT_RDWR);
  ends.erase(ends.begin() + static_cast<ptrdiff_t>(i));
}

// A sender is done once the kernel has everything, but only a sender that still polls its link sends again what a
// connection has lost. If it never polls again the receiver waits.
void attend(Side& from) {
  if (from.done()) from.step();
}

// From now on nothing that is sent to this end arrives.
void lose_all(int fd) {
  sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog loses_all{1, &none};
  REQUIRE(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &loses_all, sizeof loses_all) == 0);
}

// Exposes every message from its own memory, which it overwrites as soon as it may.
class Exposer final : public Side {
 public:
  Exposer(Link& link, const Traffic& traffic) : Side(link, traffic), memory_(traffic.max_bytes + 64) {}
  bool step() override {
    if (link_.unsent() > 0 || next_ == traffic_.messages) return poll_link();
    std::fill(memory_.begin(), memory_.end(), 'x');
    if (link_.acquire() == nullptr) return poll_link();
    traffic_.fill(next_, memory_.data());
    if (!link_.publish(memory_.data(), traffic_.bytes_of(next_), traffic_.tag_of(next_))) trouble_ = "not exposed";
    next_++;
    return trouble_.empty();
  }
  bool done() override { return next_ == traffic_.messages && link_.unsent() == 0; }
  bool waits_for_slot() const override { return true; }

 private:
  std::vector<char> memory_;
};

}  // namespace

TEST_CASE("tcp: a link has as many connections as its configuration asks for, up to 16") {
  auto a = open_endpoint(&kTcpTransport, 0), b = open_endpoint(&kTcpTransport, 1);
  REQUIRE((a && b));
  const std::set<int> before = connections();
  tuttiLinkConfig config = Ask{};
  config.connections = GENERATE(3u, 100u);
  auto out = a.value().connect(config, b.value().address());
  REQUIRE(out);
  Link in;
  bool accepted = false;
  REQUIRE(until([&] {
    accepted = accepted || take(b.value(), &in);
    return poll_once(out.value()).ready && accepted;
  }));
  const uint16_t port = Contact::from_bytes(b.value().address())->addresses[0].port();
  CHECK(ends_of_link(before, port).size() == std::min(config.connections, 16u));
}

TEST_CASE("several connections: all but one break under load, and every message arrives once, whole and in order") {
  const bool exposes = GENERATE(false, true);
  const uint32_t slot_bytes = GENERATE(64u, 200000u / 64 * 64, 3u << 20);
  for (uint32_t seed = 0; seed < times(8); seed++) {
    INFO((exposes ? "exposed, " : "copied, ") << slot_bytes << " bytes, seed " << seed);
    std::mt19937 random(seed);
    Fragile fragile = make_fragile(Ask{1, 0, 2 + seed % 4, slot_bytes}, 2 + seed % 4);
    const Traffic traffic{seed, slot_bytes < 1000 ? 3000u : slot_bytes > (1 << 20) ? 20u : 150u, slot_bytes};
    Sender sender(fragile.pair.out, traffic);
    Exposer exposer(fragile.pair.out, traffic);
    Receiver receiver(fragile.pair.in, traffic);
    Side& from = exposes ? static_cast<Side&>(exposer) : sender;
    const uint64_t often = traffic.messages / fragile.ends.size();
    std::vector<uint64_t> moments;
    for (size_t i = 1; i < fragile.ends.size(); i++) moments.push_back(i * often - random() % often);
    const auto turns = [&](Side&) {
      while (!moments.empty() && from.count() >= moments.front()) {
        break_connection(fragile.ends, random);
        moments.erase(moments.begin());
      }
      attend(from);
      return random() % 6;
    };
    REQUIRE(run_together({&from, &receiver}, turns) == "");
    CHECK(fragile.ends.size() == 1);
  }
}

TEST_CASE("several connections: what breaks when all was handed over is sent again by who looks at its link") {
  for (uint32_t seed = 0; seed < times(4); seed++) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    Fragile fragile = make_fragile(Ask{1, 0, 4, 3u << 20}, 2);
    for (const Ends& ends : fragile.ends) {
      const int few = 64 << 10;
      REQUIRE(setsockopt(ends.to, SOL_SOCKET, SO_RCVBUF, &few, sizeof few) == 0);
    }
    const Traffic traffic{seed, 8, 1u << 19};
    Sender sender(fragile.pair.out, traffic);
    Receiver receiver(fragile.pair.in, traffic);
    // Received rarely, so that kernels hold undelivered data.
    REQUIRE(until([&] {
      while (sender.step()) continue;
      return sender.done() || (receiver.step(), false);
    }));
    break_connection(fragile.ends, random);
    const auto turns = [&](Side&) {
      attend(sender);
      return 8;
    };
    REQUIRE(run_together({&sender, &receiver}, turns) == "");
  }
}

TEST_CASE("several connections: what a broken one had is unsent again") {
  Fragile fragile = make_fragile(Ask{1, 0, 64, 16 << 10}, 2);
  for (const Ends& ends : fragile.ends) {
    const int few = 64 << 10;
    REQUIRE(setsockopt(ends.to, SOL_SOCKET, SO_RCVBUF, &few, sizeof few) == 0);
  }
  // Nobody receives: the kernels accept some of the messages only.
  Link& out = fragile.pair.out;
  uint32_t published = 0;
  for (; published < 64; published++) {
    REQUIRE(out.acquire() != nullptr);
    out.publish(16 << 10, tuttiTag{});
  }
  uint32_t unsent = 0;
  for (int quiet = 0; quiet < 300; quiet++, usleep(100)) {
    REQUIRE(poll_once(out));
    if (std::exchange(unsent, out.unsent()) != unsent) quiet = 0;
  }
  REQUIRE(unsent > 0);
  REQUIRE(unsent < published);
  shutdown(fragile.ends[0].from, SHUT_RDWR);
  CHECK(until([&] { return !poll_once(out) || out.unsent() > unsent; }));
  CHECK(poll_once(out));
}

TEST_CASE("several connections: what one loses while its link ends arrives by another once that has room") {
  Fragile fragile = make_fragile(Ask{1, 0, 8, 64 << 10}, 2);
  const Ends lossy = fragile.ends[0];
  for (const Ends& ends : fragile.ends) {
    const int few = 64 << 10;
    REQUIRE(setsockopt(ends.to, SOL_SOCKET, SO_RCVBUF, &few, sizeof few) == 0);
  }
  lose_all(lossy.from);  // else the peer's own probes would look like answers
  lose_all(lossy.to);
  const Traffic traffic{44, 8, 64 << 10};
  Sender sender(fragile.pair.out, traffic);
  Receiver receiver(fragile.pair.in, traffic);
  // Received only as far as the kernels have no room for what is sent.
  REQUIRE(until([&] {
    while (sender.step()) continue;
    return sender.done() || (receiver.step(), false);
  }));
  std::thread end([&] { close(fragile.pair.out); });
  CHECK(until([&] { return !connections().contains(lossy.from); }));
  CHECK(run(receiver) == "");
  end.join();
}

TEST_CASE("several connections: a link that is revoked does not wait for what a vanished host has not acknowledged") {
  Fragile fragile = make_fragile(Ask{1, 0, 4, 16 << 10}, 2);
  lose_all(fragile.ends[0].to);
  lose_all(fragile.ends[1].to);
  Link& out = fragile.pair.out;
  REQUIRE(out.acquire() != nullptr);
  out.publish(100, tuttiTag{});
  REQUIRE(out.unsent() == 0);
  out.revoke();
  CHECK_FALSE(poll_once(out));  // its end waits for nothing
}

TEST_CASE("several connections: when all have broken, both ends say whom they have lost") {
  Fragile fragile = make_fragile(Ask{1, 0, 4, 200000 / 64 * 64}, 3);
  std::mt19937 random(3);
  const Traffic traffic{46, ~uint64_t{0}, 200000 / 64 * 64};
  Sender sender(fragile.pair.out, traffic);
  Receiver receiver(fragile.pair.in, traffic);
  const auto turns = [&](Side& side) {
    if (side.count() > 20 && !fragile.ends.empty()) break_connection(fragile.ends, random);
    return 4;
  };
  CHECK(contains(run_together({&sender, &receiver}, turns), "rank "));
  const auto sent = poll_to_failure(fragile.pair.out);
  REQUIRE(sent);
  CHECK(contains(sent->text, "rank 1"));
  CHECK(contains(run(receiver), "rank 0"));
}

TEST_CASE("several connections: what broke comes back, and carries everything when the others break in their turn") {
  // TUTTI_PORT: through a porter, which must be told the door again.
  const bool has_one_port = GENERATE(false, true);
  CAPTURE(has_one_port);
  uint16_t port_number = 0;
  REQUIRE(listen_any(0, &port_number));  // a free one
  std::optional<Setting> one_port;
  if (has_one_port) one_port.emplace("TUTTI_PORT", std::to_string(port_number).c_str());
  Fragile fragile = make_fragile(Ask{1, 0, 4, 200000 / 64 * 64}, 3);
  std::mt19937 random(5);
  const Traffic traffic{47, ~uint64_t{0}, 200000 / 64 * 64};
  Sender sender(fragile.pair.out, traffic);
  Receiver receiver(fragile.pair.in, traffic);
  const auto run_until = [&](const std::function<bool()>& there) {
    return until([&] {
      sender.step();
      receiver.step();
      return !sender.trouble().empty() || !receiver.trouble().empty() || there();
    });
  };
  const auto port = [](const Ends& ends) { return port_of(ends.from, getsockname); };
  std::set<uint16_t> broken;
  uint16_t kept = 0;
  for (int round = 0; round < 3; round++) {
    INFO("round " << round);
    // Breaks all connections except one that came back in the last round.
    const auto keep =
        std::find_if(fragile.ends.begin(), fragile.ends.end(), [&](const Ends& e) { return port(e) != kept; });
    kept = port(*keep);
    const int64_t broken_ns = now_ns();
    for (const Ends& ends : fragile.ends) {
      if (port(ends) == kept) continue;
      broken.insert(port(ends));
      shutdown(random() % 2 == 0 ? ends.from : ends.to, SHUT_RDWR);
    }
    REQUIRE(run_until([&] {
      fragile.ends = fragile.find();
      return fragile.ends.size() == 3 && std::all_of(fragile.ends.begin(), fragile.ends.end(), [&](const Ends& ends) {
               return !broken.contains(port(ends)) && carries(ends);
             });
    }));
    CHECK(now_ns() - broken_ns >= 500'000'000);  // else a peer that refuses would be called all the time
    REQUIRE(sender.trouble() + receiver.trouble() == "");
  }
}

TEST_CASE("several connections: what was sent again counts once, also of one that was given up") {
  Fragile fragile = make_fragile(Ask{1, 0, 4, 200000 / 64 * 64}, 2);
  const int lossy = fragile.ends[0].from, other = fragile.ends[1].from;
  lose_all(fragile.ends[0].to);
  const Traffic traffic{48, ~uint64_t{0}, 200000 / 64 * 64};
  Sender sender(fragile.pair.out, traffic);
  Receiver receiver(fragile.pair.in, traffic);
  const auto run_until = [&](const std::function<bool()>& there) {
    return until([&] {
      sender.step();
      receiver.step();
      return !sender.trouble().empty() || !receiver.trouble().empty() || there();
    });
  };
  REQUIRE(run_until([&] { return resent_segments(lossy) >= 3 && fragile.pair.out.state().resent >= 3; }));
  shutdown(lossy, SHUT_RDWR);
  const uint64_t by_lossy = resent_segments(lossy);  // a few more, perhaps, until it is closed
  REQUIRE(run_until([&] { return !connections().contains(lossy); }));
  const uint64_t counted = fragile.pair.out.state().resent;
  CHECK(counted >= by_lossy);
  CHECK(counted < 2 * by_lossy + resent_segments(other));
}

TEST_CASE("tcp: both ends of a connection ask a peer that is idle, unless TUTTI_TCP_TIMEOUT is 0") {
  const bool asks = GENERATE(true, false);
  const Setting timeout("TUTTI_TCP_TIMEOUT", asks ? "11" : "0");
  const std::set<int> before = connections();
  const Pair p = make_pair(&kTcpTransport);
  const auto ends = ends_of_link(before, Contact::from_bytes(p.receiver.address())->addresses[0].port());
  REQUIRE(ends.size() == 1);
  for (const int fd : {ends[0].from, ends[0].to}) {
    int is_on = -1, seconds = 0;
    socklen_t bytes = sizeof(int);
    REQUIRE(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &is_on, &bytes) == 0);
    CHECK((is_on != 0) == asks);
    REQUIRE(getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, &bytes) == 0);
    if (asks) CHECK(seconds == 3);  // a fifth, rounded up
  }
}

TEST_CASE("tcp: the kernel retries for three times TUTTI_TCP_TIMEOUT, or for as long as it usually does") {
  const int limit_s = GENERATE(0, 1, 5, 6, 40, 300);
  CAPTURE(limit_s);
  const Setting timeout("TUTTI_TCP_TIMEOUT", std::to_string(limit_s).c_str());
  const std::set<int> before = connections();
  const Pair p = make_pair(&kTcpTransport);
  const auto ends = ends_of_link(before, Contact::from_bytes(p.receiver.address())->addresses[0].port());
  REQUIRE(ends.size() == 1);
  const auto most_ms = [](int fd) {
    constexpr int kTcpRtoMaxMs = 44;
    int ms = 0;
    socklen_t bytes = sizeof ms;
    return getsockopt(fd, IPPROTO_TCP, kTcpRtoMaxMs, &ms, &bytes) == 0 ? ms : 0;
  };
  if (most_ms(ends[0].from) == 0) {
    WARN("skipped: this kernel's longest wait cannot be set (before Linux 6.15)");
    return;
  }
  const Fd usual(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  for (const int fd : {ends[0].from, ends[0].to}) {
    if (limit_s == 0) CHECK(most_ms(fd) == most_ms(usual.get()));
    int64_t all_ms = 0, wait_ms = 200;
    for (int wait = 0; wait <= 15; wait++, wait_ms = std::min<int64_t>(2 * wait_ms, most_ms(fd))) all_ms += wait_ms;
    CHECK(all_ms >= 3000 * int64_t{limit_s});
    if (limit_s != 0 && limit_s <= 5) CHECK(most_ms(fd) <= 1100);
  }
}
