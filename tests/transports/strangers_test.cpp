// Strangers at the door: whatever they send or fail to send, they are refused, and ranks get in meanwhile.
#include <sys/resource.h>
#include <unistd.h>

#include <random>

#include "base/log.h"
#include "overheard.h"
#include "strangers.h"

using namespace tutti;
using namespace tutti::test;

namespace {

Hello hello_of(const Door& door) {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const Fd here(ends[0]), there(ends[1]);
  Handshake::client(Key{}, door.kind, 0, 1, {0, 4, 4096}).advance(here.get());
  Hello hello;
  REQUIRE(::recv(there.get(), &hello, sizeof hello, 0) == sizeof hello);
  return hello;
}

std::string bytes_of(const Hello& hello) {
  return {reinterpret_cast<const char*>(&hello), sizeof hello};
}

// What strangers send: noise, other protocols, almost the right bytes.
std::vector<std::string> sayings(const Door& door) {
  std::vector<std::string> all = {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", std::string(sizeof(Hello), '\0'), "\n"};
  std::mt19937_64 random(5);
  for (const size_t bytes : {size_t{1}, sizeof(Hello) - 1, sizeof(Hello), sizeof(Hello) + 1, sizeof(Hello) + 32,
                             size_t{1000}, size_t{200000}}) {
    std::string noise(bytes, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    all.push_back(noise);
  }
  Hello hello = hello_of(door);
  all.push_back(bytes_of(hello) + std::string(32, 'x'));  // no proof
  all.push_back(bytes_of(hello) + std::string(5000, 'x'));
  hello.version = 99;
  all.push_back(bytes_of(hello));
  hello = hello_of(door);
  hello.magic[0] = 'X';
  all.push_back(bytes_of(hello));
  hello = hello_of(door);
  hello.to_rank = -1;
  all.push_back(bytes_of(hello));
  hello = hello_of(door);
  hello.kind = HelloKind::kBootstrap;
  all.push_back(bytes_of(hello));
  return all;
}

bool nobody_comes_in(Endpoint& endpoint, int looks = 20) {
  Link in;
  for (int i = 0; i < looks; i++)
    if (take(endpoint, &in)) return false;
  return true;
}

}  // namespace

TEST_CASE("strangers that talk are refused") {
  const tuttiTransport* t = GENERATE(from_range(transports_with_doors()));
  INFO(t->name);
  auto b = open_endpoint(t, 1);
  REQUIRE(b);
  const size_t before = open_descriptors();
  const auto all = sayings(door_of(b.value()));
  for (size_t i = 0; i < all.size(); i++) {
    INFO("saying " << i);
    Fd stranger = knock(door_of(b.value()));
    REQUIRE(stranger);
    [[maybe_unused]] const ssize_t n = ::send(stranger.get(), all[i].data(), all[i].size(), MSG_NOSIGNAL);
    CHECK(nobody_comes_in(b.value()));
    // A complete wrong first message ends the connection sooner than silence; after a part it waits for the rest.
    if (all[i].size() >= sizeof(Hello))
      CHECK(
          until(Deadline::after_seconds(4), [&] { return nobody_comes_in(b.value(), 1) && hung_up(stranger.get()); }));
    check_open_for_ranks(b.value());
    if (i % 2 == 0) ::shutdown(stranger.get(), SHUT_WR);
  }
  REQUIRE(until([&] { return nobody_comes_in(b.value(), 1) && open_descriptors() == before; }));
}

TEST_CASE("another group's rank is refused, and told why") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  auto ours = open_endpoint(t, 1), other = open_endpoint(t, 0, 2, 8), good = open_endpoint(t, 0);
  REQUIRE((ours && other && good));
  auto link = other.value().connect(Ask{}, ours.value().address());
  REQUIRE(link);
  std::string why;
  REQUIRE(until([&] {
    CHECK(nobody_comes_in(ours.value(), 1));
    const Health health = poll_once(link.value());
    why = health.error.text;
    return !health;
  }));
  CHECK(contains(why, "rank 1"));
  CHECK(contains(why, "secret"));
  Link out, in;
  CHECK(join(good.value(), Ask{}, ours.value(), &out, &in));
}

TEST_CASE("a rank does not take just anybody who listens for its peer") {
  const tuttiTransport* t = GENERATE(from_range(transports_with_doors()));
  INFO(t->name);
  auto a = open_endpoint(t, 0);
  REQUIRE(a);
  Impostor impostor = listen_as_impostor(t);
  auto link = a.value().connect(Ask{}, impostor.address);
  REQUIRE(link);
  Fd line;
  REQUIRE(until([&] { return poll_once(link.value()) && (line || (line = accept_one(impostor.listener.get()))); }));
  Hello hello;
  REQUIRE(until([&] {
    return poll_once(link.value()) && ::recv(line.get(), &hello, sizeof hello, MSG_DONTWAIT) == sizeof hello;
  }));
  std::string no_proof(16 + 32, 'p');
  if (hello.ciphers != 0) no_proof.insert(16, '\1' + std::string(32, 'k'));  // a cipher and a key
  REQUIRE(send_raw(line, no_proof.data(), no_proof.size()));
  const auto error = poll_to_failure(link.value());
  REQUIRE(error);
  CHECK(contains(error->text, "rank 1"));
  CHECK(contains(error->text, "does not know this group's secret"));
  // It has proved that it knows the secret, and said nothing else. The proof is worthless elsewhere.
  uint8_t said[64];
  const size_t proof_bytes = hello.ciphers != 0 ? 64 : 32;
  REQUIRE(::recv(line.get(), said, sizeof said, MSG_DONTWAIT) == static_cast<ssize_t>(proof_bytes));
  CHECK(hung_up(line.get()));
  auto b = open_endpoint(t, 1);
  REQUIRE(b);
  const Fd stranger = knock(door_of(b.value()));
  REQUIRE(stranger);
  REQUIRE(send_raw(stranger, &hello, sizeof hello));
  REQUIRE(send_raw(stranger, said, proof_bytes));
  CHECK(until([&] { return nobody_comes_in(b.value(), 1) && hung_up(stranger.get()); }));
}

TEST_CASE("a connection that is meant for another rank is refused") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  auto a = open_endpoint(t, 0, 3), b = open_endpoint(t, 1, 3);
  REQUIRE((a && b));
  auto link = a.value().connect(Ask{2}, b.value().address());
  REQUIRE(link);
  Health health;
  REQUIRE(until([&] {
    CHECK(nobody_comes_in(b.value(), 1));
    return !(health = poll_once(link.value()));
  }));
  CHECK(contains(health.error.text, "rank 2"));
}

TEST_CASE("silent strangers, more than anybody would wait for, do not keep ranks out") {
  const tuttiTransport* t = GENERATE(from_range(transports_with_doors()));
  const bool half_a_hello = GENERATE(false, true);
  INFO(t->name << (half_a_hello ? ", half a hello" : ""));
  auto b = open_endpoint(t, 1);
  REQUIRE(b);
  const Door door = door_of(b.value());
  std::vector<Fd> crowd;
  for (int i = 0; i < 400; i++) {
    crowd.push_back(knock(door));
    REQUIRE(crowd.back());
    const Hello hello = hello_of(door);
    if (half_a_hello) REQUIRE(send_raw(crowd.back(), &hello, sizeof hello / 2));
    if (i % 100 == 0) CHECK(nobody_comes_in(b.value(), 1));
  }
  // Well before each of them has used up a stranger's five seconds.
  check_open_for_ranks(b.value(), Deadline::after_seconds(10));
  CHECK(nobody_comes_in(b.value()));
}

TEST_CASE("a slow rank is waited for: one byte at a time") {
  const tuttiTransport* t = GENERATE(from_range(transports_with_doors()));
  INFO(t->name);
  auto b = open_endpoint(t, 1);
  REQUIRE(b);
  const Door door = door_of(b.value());
  const Fd line = knock(door);
  REQUIRE(line);
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const Fd mine(ends[0]), relay(ends[1]);
  auto handshake = Handshake::client(key_of(7), door.kind, 0, 1, {4, 2, 64, 0, 1});
  auto status = Handshake::Status::kPending;
  Link in;
  bool accepted = false;
  REQUIRE(until([&] {
    status = handshake.advance(mine.get());
    for (const auto& [from, to] : {std::pair(relay.get(), line.get()), std::pair(line.get(), relay.get())}) {
      char byte;
      if (::recv(from, &byte, 1, MSG_DONTWAIT) == 1 && ::send(to, &byte, 1, MSG_NOSIGNAL) != 1) return true;
    }
    usleep(200);
    accepted = take(b.value(), &in) || accepted;
    return status != Handshake::Status::kPending;
  }));
  CHECK(status == Handshake::Status::kDone);
  if (door.kind == HelloKind::kTcp) CHECK(until([&] { return accepted || (accepted = take(b.value(), &in)); }));
}

TEST_CASE("a rank that asks for what no link can be is refused") {
  const tuttiTransport* t = GENERATE(from_range(transports_with_doors()));
  auto b = open_endpoint(t, 1);
  REQUIRE(b);
  for (const auto& [slots, slot_bytes] : std::vector<std::pair<uint32_t, uint32_t>>{
           {0, 64}, {1, 64}, {65, 64}, {0xffffffff, 64}, {4, 0}, {4, 1}, {4, 65}, {4, 1u << 31}, {64, 0xffffffc0}}) {
    INFO(t->name << " " << slots << " slots of " << slot_bytes);
    const Fd rank = authenticate(b.value(), Ask{1, 0, slots, slot_bytes});
    REQUIRE(rank);
    CHECK(until([&] { return nobody_comes_in(b.value(), 1) && hung_up(rank.get()); }));
  }
  for (const int from_rank : {-1, 2, 1 << 30}) {
    INFO("from rank " << from_rank);
    const Fd rank = authenticate(b.value(), Ask{}, from_rank);
    REQUIRE(rank);
    CHECK(until([&] { return nobody_comes_in(b.value(), 1) && hung_up(rank.get()); }));
  }
  check_open_for_ranks(b.value());
}

namespace {

// No descriptor is available while this lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none{0, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_;
};

}  // namespace

TEST_CASE("without descriptors ranks wait, it is said once, and they get in when there are some") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  auto a = open_endpoint(t, 0), b = open_endpoint(t, 1);
  REQUIRE((a && b));
  auto out = a.value().connect(Ask{}, b.value().address());
  REQUIRE(out);
  REQUIRE(poll_once(out.value()));
  Link in;
  tutti_test::Overheard overheard;
  {
    const NoDescriptors none;
    for (int i = 0; i < 100; i++) {
      CHECK_FALSE(take(b.value(), &in));
      CHECK(poll_once(out.value()));
    }
  }
  if (log_enabled(LogLevel::kWarn)) CHECK(overheard.count("ulimit -n") == 1);
  CHECK(until([&] { return poll_once(out.value()) && take(b.value(), &in); }));
}

TEST_CASE("500 links come and go without a trace") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  const auto mappings = [] {
    size_t ours = 0;
    if (FILE* maps = fopen("/proc/self/maps", "r")) {
      for (char line[512]; fgets(line, sizeof line, maps) != nullptr;)
        ours += strstr(line, "tutti") != nullptr && strstr(line, "memfd:") != nullptr;
      fclose(maps);
    }
    return ours;
  };
  auto a = open_endpoint(t, 0), b = open_endpoint(t, 1);
  REQUIRE((a && b));
  const size_t descriptors = open_descriptors(), maps = mappings();
  for (uint32_t i = 0; i < 500; i++) {
    Link out, in;
    REQUIRE(join(a.value(), Ask{1, i, 2 + i % 5, 4096}, b.value(), &out, &in));
    if (strcmp(t->name, "shm") == 0) REQUIRE(mappings() > maps);
    if (i % 3 == 0) {
      REQUIRE(out.acquire() != nullptr);
      out.publish(64, tuttiTag{});
    }
    if (i % 2 == 0) Link(std::move(out));
  }
  CHECK(open_descriptors() == descriptors);
  CHECK(mappings() == maps);
  // Attempts that lead nowhere leave nothing behind either.
  for (uint32_t i = 0; i < 100; i++) {
    auto out = a.value().connect(Ask{1, i}, b.value().address());
    REQUIRE(out);
    for (uint32_t n = 0; n < i % 5; n++) {
      poll_once(out.value());
      Link in;
      take(b.value(), &in);
    }
  }
  Link in;
  CHECK(until([&] {
    take(b.value(), &in);
    return open_descriptors() == descriptors;
  }));
  CHECK(mappings() == maps);
}
