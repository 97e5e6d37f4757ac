// Endpoints find each other: addresses, reachability, connect and accept, in one thread, in threads, in processes.
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "traffic.h"

using namespace tutti;
using namespace tutti::test;

TEST_CASE("a link brings a message, and the sender's configuration, to the other rank") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  const Ask ask = GENERATE(Ask{1, 0, 2, 64}, Ask{1, 5, 3, 192}, Ask{1, 0xffffffff, 64, 4096}, Ask{1, 1, 4, 1 << 20});
  INFO(t->name << " " << ask.slots << " slots of " << ask.slot_bytes);
  const Pair p = make_pair(t, ask);
  CHECK(p.sender.address().size() <= TUTTI_ADDRESS_MAX_BYTES);
  CHECK(p.sender.unreachable_because(p.receiver.address()) == "");
  Link &out = const_cast<Pair&>(p).out, &in = const_cast<Pair&>(p).in;
  CHECK(out.peer() == 1);
  CHECK(in.peer() == 0);
  CHECK(in.config().channel == ask.channel);
  CHECK(in.config().slots == ask.slots);
  CHECK(in.config().slot_bytes == ask.slot_bytes);

  // Twice around all slots: checks alignment and content of each.
  const Traffic traffic{11, 2 * ask.slots + 1, ask.slot_bytes};
  for (uint64_t i = 0; i < traffic.messages; i++) {
    void* slot = out.acquire();
    REQUIRE(slot != nullptr);
    CHECK(reinterpret_cast<uintptr_t>(slot) % 64 == 0);
    traffic.fill(i, slot);
    out.publish(traffic.bytes_of(i), traffic.tag_of(i));
    tuttiMessage message{};
    REQUIRE(until([&] { return poll_once(out) && poll_once(in) && in.peek(&message); }));
    CHECK(traffic.check(i, message) == "");
    in.release();
    REQUIRE(until([&] { return poll_once(out) && poll_once(in) && out.unsent() == 0; }));
  }
}

TEST_CASE("accept finds nobody until somebody connects, and connecting waits for accept") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  auto a = open_endpoint(t, 0), b = open_endpoint(t, 1);
  REQUIRE((a && b));
  Link in;
  for (int i = 0; i < 10; i++) CHECK_FALSE(take(b.value(), &in));
  auto out = a.value().connect(Ask{}, b.value().address());
  REQUIRE(out);
  for (int i = 0; i < 1000; i++) {
    const Health health = poll_once(out.value());
    REQUIRE(health);
    CHECK_FALSE(health.ready);
    CHECK(out.value().acquire() == nullptr);
    CHECK(out.value().unsent() == 0);
  }
  const auto is_ready = [&] {
    const Health health = poll_once(out.value());
    REQUIRE(health);
    if (!health.ready) CHECK(out.value().acquire() == nullptr);
    return health.ready;
  };
  REQUIRE(until([&] { return is_ready(), take(b.value(), &in); }));
  REQUIRE(until(is_ready));
  CHECK(out.value().acquire() != nullptr);
}

TEST_CASE("many endpoints, all to all, several channels") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  constexpr int kRanks = 5;
  constexpr uint32_t kChannels = 3;
  std::vector<Endpoint> endpoints;
  for (int r = 0; r < kRanks; r++) endpoints.push_back(open_endpoint(t, r, kRanks).value());
  std::vector<Link> out, in[kRanks];
  for (int from = 0; from < kRanks; from++)
    for (int to = kRanks - 1; to >= 0; to--)
      for (uint32_t channel = 0; from != to && channel < kChannels; channel++) {
        auto link = endpoints[static_cast<size_t>(from)].connect(Ask{to, channel},
                                                                 endpoints[static_cast<size_t>(to)].address());
        REQUIRE(link);
        out.push_back(std::move(link).value());
      }
  const size_t per_rank = (kRanks - 1) * kChannels;
  REQUIRE(until([&] {
    bool all = true;
    for (Link& link : out) all = poll_once(link).ready && all;
    for (size_t r = 0; r < kRanks; r++) {
      for (Link link; take(endpoints[r], &link);) in[r].push_back(std::move(link));
      all = all && in[r].size() == per_rank;
    }
    return all;
  }));
  // Every message names its destination.
  for (size_t i = 0; i < out.size(); i++) {
    REQUIRE(out[i].acquire() != nullptr);
    const auto from = static_cast<uint64_t>(i / per_rank);
    out[i].publish(0, tuttiTag{{from, static_cast<uint64_t>(out[i].peer()), out[i].config().channel, 0}});
  }
  for (size_t r = 0; r < kRanks; r++)
    for (Link& link : in[r]) {
      tuttiMessage message{};
      REQUIRE(until([&] {
        for (Link& o : out) poll_once(o);
        return poll_once(link) && link.peek(&message);
      }));
      CHECK(message.tag.word[0] == static_cast<uint64_t>(link.peer()));
      CHECK(message.tag.word[1] == r);
      CHECK(message.tag.word[2] == link.config().channel);
      CHECK(message.bytes == 0);
    }
}

namespace {

// One rank of two: links in both directions, with a stream each.
std::string both_ways(Endpoint& mine, int peer, const std::string& peer_address) {
  Link in;
  auto out = mine.connect(Ask{peer, 3}, peer_address);
  if (!out) return out.error().message;
  bool accepted = false, ready = false;
  std::string trouble;
  const bool joined = until([&] {
    if (!accepted) accepted = take(mine, &in);
    const Health health = poll_once(out.value());
    ready = health.ready;
    if (!health) trouble = health.error.text;
    return !trouble.empty() || (accepted && ready);
  });
  if (!trouble.empty() || !joined) return "joining: " + trouble;
  const Traffic traffic{99, times(2000), 4096};
  Sender sender(out.value(), traffic);
  Receiver receiver(in, traffic);
  return run_together({&sender, &receiver});
}

}  // namespace

TEST_CASE("links both ways between two threads") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  auto a = open_endpoint(t, 0), b = open_endpoint(t, 1);
  REQUIRE((a && b));
  const std::string addresses[] = {a.value().address(), b.value().address()};
  std::string trouble;
  std::atomic<bool> done{false};
  std::thread other([&] {
    trouble = both_ways(b.value(), 0, addresses[0]);
    done = true;
  });
  CHECK(both_ways(a.value(), 1, addresses[1]) == "");
  other.join();
  CHECK(trouble == "");
}

TEST_CASE("links both ways between two processes with different working directories") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  auto a = open_endpoint(t, 0);
  REQUIRE(a);
  const std::string my_address = a.value().address();
  Child child([&](Mailbox& mail) -> std::string {
    if (chdir("/") != 0) return "chdir";
    auto b = open_endpoint(t, 1);
    if (!b || !mail.send(b.value().address())) return "no endpoint";
    const std::string trouble = both_ways(b.value(), 0, my_address);
    mail.receive();  // until the parent has finished
    return trouble;
  });
  const auto address = child.mail().receive();
  REQUIRE(address);
  CHECK(both_ways(a.value(), 1, *address) == "");
  child.mail().send("");
  CHECK(child.ended_well());
}

TEST_CASE("a link's limits are checked where it is asked for") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  const Ask ask = GENERATE(Ask{1, 0, 0, 64}, Ask{1, 0, 1, 64}, Ask{1, 0, 65, 64}, Ask{1, 0, 4, 0}, Ask{1, 0, 4, 100},
                           Ask{1, 0, 4, 1u << 31}, Ask{1, 0, 0xffffffff, 0xffffffc0});
  INFO(t->name << " " << ask.slots << " slots of " << ask.slot_bytes);
  auto a = open_endpoint(t, 0), b = open_endpoint(t, 1);
  REQUIRE((a && b));
  const auto link = a.value().connect(ask, b.value().address());
  REQUIRE_FALSE(link);
  CHECK(link.error().code == Code::kInvalidArgument);
  CHECK(contains(link.error().message, std::to_string(ask.slots) + " slots"));
}

TEST_CASE("an endpoint that is gone: the link fails, says whose it was, and stays failed") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  auto a = open_endpoint(t, 0);
  REQUIRE(a);
  std::string address;
  {
    auto b = open_endpoint(t, 1);
    REQUIRE(b);
    address = b.value().address();
  }
  auto link = a.value().connect(Ask{}, address);
  REQUIRE(link);
  const auto error = poll_to_failure(link.value());
  REQUIRE(error);
  CHECK(error->code == tuttiRemoteError);
  CHECK(contains(error->text, "rank 1"));
  for (int i = 0; i < 100; i++) CHECK_FALSE(poll_once(link.value()));
}

TEST_CASE("an endpoint that closes while peers connect") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  auto a = open_endpoint(t, 0);
  auto b = std::make_unique<Endpoint>(open_endpoint(t, 1).value());
  auto link = a.value().connect(Ask{}, b->address());
  REQUIRE(link);
  for (int i = 0; i < 10; i++) REQUIRE(poll_once(link.value()));
  const bool accepts = GENERATE(false, true);  // in the middle of the handshake, which one look does not finish
  {
    Link in;
    if (accepts) take(*b, &in);
  }
  b.reset();
  CHECK(poll_to_failure(link.value()));
}

TEST_CASE("other transports' addresses are unreachable, with a reason") {
  const std::vector<const tuttiTransport*> all = find_transports("").value();
  for (const tuttiTransport* t : transports())
    for (const tuttiTransport* other : all) {
      if (t == other) continue;
      INFO(t->name << " with an address of " << other->name);
      auto a = open_endpoint(t, 0), b = open_endpoint(other, 1);
      REQUIRE((a && b));
      CHECK(a.value().unreachable_because(b.value().address()) != "");
    }
}

// Whether IPv4, IPv6 and link-local addresses with their ports can add up to that size.
static bool is_of_places(size_t bytes) {
  const auto takes = [&](size_t one) { return bytes >= one && is_of_places(bytes - one); };
  return bytes == 0 || takes(7) || takes(19) || takes(23);
}

TEST_CASE("broken addresses never break an endpoint") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  auto a = open_endpoint(t, 0), b = open_endpoint(t, 1);
  REQUIRE((a && b));
  const std::string good = b.value().address();
  std::mt19937_64 random(4711);
  const auto try_out = [&](const std::string& blob) {
    const std::string why = a.value().unreachable_because(blob);
    auto link = a.value().connect(Ask{}, blob);
    if (!link) CHECK(contains(link.error().message, "address"));
    return why.empty() && link;
  };
  // A truncated address leads nowhere, or to fewer places.
  for (size_t bytes = 0; bytes < good.size(); bytes++) {
    const std::string cut = good.substr(0, bytes);
    INFO(bytes << " of " << good.size() << " bytes");
    if (try_out(cut)) CHECK(is_of_places(good.size() - bytes));
  }
  CHECK_FALSE(try_out(good + "x"));
  CHECK_FALSE(try_out(std::string(TUTTI_ADDRESS_MAX_BYTES, '\xff')));
  CHECK_FALSE(try_out(""));
  // Not polled: a changed address may be another host's.
  for (uint64_t round = 0; round < times(20000); round++) {
    std::string blob = good;
    for (uint64_t changes = random() % 8 + 1; changes > 0; changes--)
      blob[random() % blob.size()] = static_cast<char>(random());
    if (random() % 4 == 0) blob.resize(random() % (good.size() + 40));
    try_out(blob);
  }
  Link out, in;
  CHECK(join(a.value(), Ask{}, b.value(), &out, &in));
}
