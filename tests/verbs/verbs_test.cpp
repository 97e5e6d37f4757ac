// Features that only verbs has: paths between ports, keys, registered memory. Tests that need a device are tagged.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>

#include "base/shared_memory.h"
#include "traffic.h"
#include "transports/verbs/link.h"

using namespace tutti;
using namespace tutti::test;
using namespace tutti::verbs;

namespace {

GidBytes v4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d};
}
GidBytes v6(uint8_t first, uint8_t second, uint8_t subnet, uint8_t last) {
  return {first, second, 0, 0, 0, 0, 0, subnet, 0, 0, 0, 0, 0, 0, 0, last};
}
PortAddress ethernet(std::initializer_list<GidBytes> gids) {
  PortAddress port;
  port.is_ethernet = 1;
  for (const GidBytes& gid : gids) port.gids[port.n_gids++] = gid;
  return port;
}

const tuttiTransport* verbs_transport() {
  return find_transports("verbs").value()[0];
}

tuttiEndpointConfig config_of(int rank) {
  tuttiEndpointConfig config{sizeof config,   rank, 2, {}, find_memory, SharedMemory::removals, is_live_memory,
                             dmabuf_of_memory};
  memset(config.group_key, 7, sizeof config.group_key);
  return config;
}

struct Registered {
  explicit Registered(size_t bytes) : data(bytes), id(SharedMemory::add(data.data(), bytes).value()->id) {}
  ~Registered() { SharedMemory::remove(id); }
  std::vector<char> data;
  uint64_t id;
};

// Looks to Tutti like a device's memory: the CPU cannot touch it at its address, and it is registered by a descriptor,
// see dmabuf_stand_in.cpp.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes, Fd dmabuf = Fd()) : bytes_(bytes) {
    const Fd fd(memfd_create("device", MFD_CLOEXEC));
    REQUIRE(ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
    behind_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    data_ = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, fd.get(), 0);
    if (!dmabuf) dmabuf.reset(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
    id_ = SharedMemory::add_device(data_, bytes, std::move(dmabuf), 0)->id;
  }
  ~DeviceMemory() {
    SharedMemory::remove(id_);
    munmap(data_, bytes_);
    munmap(behind_, bytes_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  char* data() const { return static_cast<char*>(data_); }
  char* behind() const { return static_cast<char*>(behind_); }

 private:
  size_t bytes_;
  void *data_, *behind_;
  uint64_t id_;
};

}  // namespace

TEST_CASE("a path joins addresses of one family, of one subnet if there is one") {
  const PortAddress mine = ethernet({v4(203, 0, 113, 1), v4(198, 51, 100, 1), v6(0x20, 1, 5, 1), v6(0xfe, 0x80, 0, 1)});
  const auto path = [&](const PortAddress& peer) {
    const Path p = find_path(mine, peer);
    return std::array<size_t, 3>{p.score > 0, p.my_gid, p.peer_gid};
  };
  CHECK(path(ethernet({v4(198, 51, 100, 9)})) == std::array<size_t, 3>{1, 1, 0});
  CHECK(path(ethernet({v6(0xfe, 0x80, 0, 7), v4(203, 0, 113, 9)})) == std::array<size_t, 3>{1, 0, 1});
  CHECK(path(ethernet({v6(0xfe, 0x80, 0, 7)})) == std::array<size_t, 3>{1, 3, 0});
  CHECK(path(ethernet({v6(0xfe, 0x80, 0, 7), v6(0x20, 1, 5, 2)})) == std::array<size_t, 3>{1, 2, 1});
  CHECK(find_path(ethernet({v4(203, 0, 113, 1)}), ethernet({v6(0x20, 1, 5, 2)})).score == 0);
  CHECK(find_path(ethernet({}), mine).score == 0);
  PortAddress infiniband = mine;
  infiniband.is_ethernet = 0;
  CHECK(find_path(mine, infiniband).score == 0);
  CHECK(find_path(infiniband, infiniband).score > 0);
  const Path routed = find_path(ethernet({v4(127, 0, 0, 2), v4(127, 0, 0, 1)}), ethernet({v4(127, 0, 0, 3)}));
  CHECK(routed.my_gid == 1);
}

TEST_CASE("ports are paired where one network joins them, others only where none does") {
  const auto v4_port = [](uint8_t network, uint8_t host) {
    PortAddress port = ethernet({v4(198, 51, network, host)});
    port.network_bits[0] = 96 + 24;
    return port;
  };
  const auto subnet = [](uint8_t number, uint8_t host) {
    PortAddress port = ethernet({v6(0xfe, 0xc0, number, host)});
    port.is_ethernet = 0;
    return port;
  };
  using Pairs = std::vector<std::pair<size_t, size_t>>;
  const auto pairs = [](const std::vector<PortAddress>& mine, const std::vector<PortAddress>& theirs) {
    Pairs found;
    for (const Pairing& pairing : pair_ports(mine, theirs)) found.emplace_back(pairing.mine, pairing.theirs);
    return found;
  };
  const std::vector<PortAddress> mine{v4_port(1, 1), v4_port(2, 1)};
  CHECK(pairs(mine, {v4_port(2, 2), v4_port(1, 2)}) == Pairs{{0, 1}, {1, 0}});
  CHECK(pairs(mine, {v4_port(3, 2), v4_port(1, 2)}) == Pairs{{0, 1}});
  CHECK(pairs(mine, {v4_port(2, 2)}) == Pairs{{1, 0}});
  CHECK(pairs(mine, {v4_port(3, 2), v4_port(4, 2)}) == Pairs{{0, 0}, {1, 1}});
  CHECK(pairs({v4_port(1, 1), v4_port(1, 3)}, {v4_port(1, 2), v4_port(1, 4)}) == Pairs{{0, 0}, {1, 1}});
  CHECK(pairs({subnet(1, 1), subnet(2, 1)}, {subnet(2, 2), subnet(1, 2)}) == Pairs{{0, 1}, {1, 0}});
  CHECK(pairs({subnet(1, 1)}, {subnet(2, 2)}).empty());
  CHECK(pairs({PortAddress{}, v4_port(1, 1)}, {v4_port(1, 2)}) == Pairs{{1, 0}});
}

TEST_CASE("messages between registered memories are read and written where they lie", "[device]") {
  Pair p = make_pair(verbs_transport(), Ask{1, 0, 4, 64 << 10});
  Registered from(64 << 10), to(64 << 10);
  int placed = 0;
  for (int i = 0; i < 50; i++) {
    const uint32_t bytes = 1 + static_cast<uint32_t>(i) * 1300;
    p.in.post(0, to.data.data(), bytes);
    REQUIRE(until([&] { return poll_once(p.in) && poll_once(p.out) && p.out.acquire() != nullptr; }));
    usleep(2000);  // until the wish is on its way
    memset(from.data.data(), i, bytes);
    REQUIRE(p.out.publish(from.data.data(), bytes, tuttiTag{{static_cast<uint64_t>(i), 0, 0, 0}}));
    tuttiMessage message{};
    REQUIRE(until([&] { return poll_once(p.in) && p.in.peek(&message); }));
    placed += message.data == to.data.data();
    REQUIRE(message.bytes == bytes);
    CHECK(std::string(static_cast<const char*>(message.data), bytes) == std::string(bytes, static_cast<char>(i)));
    p.in.release();
    REQUIRE(until([&] { return poll_once(p.out) && p.out.unsent() == 0; }));
  }
  CHECK(placed > 25);
  // Unregistered memory is copied.
  std::vector<char> stranger(64);
  REQUIRE(until([&] { return poll_once(p.out) && p.out.acquire() != nullptr; }));
  CHECK_FALSE(p.out.publish(stranger.data(), 64, tuttiTag{}));
}

namespace {

// False until the receiver has announced a place.
bool deliver(Link& link, const void* data, uint32_t bytes, const tuttiTag& tag) {
  void* unused = nullptr;
  return link.acquire(data, bytes, TUTTI_REQUIRED, &unused) == TUTTI_EXPOSED && link.publish(data, bytes, tag) != 0;
}

}  // namespace

// A receiver that had the link earlier would write to queue pairs that are not connected; and one whose sender cannot
// connect them would keep the link, and refuse what the sender uses instead.
TEST_CASE("a receiver has a link once its sender is ready, not before", "[device]") {
  auto a = open_endpoint(verbs_transport(), 0), b = open_endpoint(verbs_transport(), 1);
  REQUIRE((a && b));
  auto out = a.value().connect(Ask{}, b.value().address());
  REQUIRE(out);
  Link in;
  bool is_ready = false;
  REQUIRE(until([&] {
    if (take(b.value(), &in)) return true;
    is_ready = poll_once(out.value()).ready;
    return false;
  }));
  CHECK(is_ready);
  // Even one that ends at once, with a message in flight.
  REQUIRE(out.value().acquire() != nullptr);
  out.value().publish(0, tuttiTag{{7, 0, 0, 0}});
  close(out.value());
  tuttiMessage message{};
  CHECK(until([&] { return poll_once(in) && in.peek(&message); }));
  CHECK(message.tag.word[0] == 7);
}

TEST_CASE("what belongs in a required place goes there, however long, and waits for it", "[device]") {
  Pair p = make_pair(verbs_transport(), Ask{1, 0, 4, 64 << 10});
  DeviceMemory from(1 << 20), to(1 << 20);
  for (uint32_t i = 0; i < 30; i++) {
    const uint32_t bytes = i < 3 ? i + 1 : i * 34'567;
    const tuttiTag tag{{i, 0, 0, 0}};
    REQUIRE(until([&] { return poll_once(p.out) && p.out.acquire() != nullptr; }));
    CHECK_FALSE(deliver(p.out, from.data(), bytes, tag));
    memset(from.behind(), static_cast<int>(i + 1), bytes);
    REQUIRE(p.in.post(0, to.data() + i, bytes, true));
    REQUIRE(until([&] { return poll_once(p.in) && poll_once(p.out) && deliver(p.out, from.data(), bytes, tag); }));
    tuttiMessage message{};
    REQUIRE(until([&] { return poll_once(p.in) && p.in.peek(&message); }));
    CHECK(message.data == static_cast<const void*>(to.data() + i));
    CHECK(message.bytes == bytes);
    CHECK(message.tag.word[0] == i);
    CHECK(std::string(to.behind() + i, bytes) == std::string(bytes, static_cast<char>(i + 1)));
    p.in.release();
    REQUIRE(until([&] { return poll_once(p.out) && p.out.unsent() == 0; }));
  }
  std::vector<char> stranger(64);
  CHECK_FALSE(p.in.post(0, stranger.data(), 64, true));
}

TEST_CASE("of another length than is required, only the tag comes", "[device]") {
  Pair p = make_pair(verbs_transport());
  DeviceMemory from(4096), to(4096);
  REQUIRE(p.in.post(0, to.data(), 100, true));
  REQUIRE(until([&] { return poll_once(p.out) && p.out.acquire() != nullptr; }));
  memset(from.behind(), 7, 4096);
  const tuttiTag tag{{5, 0, 0, 0}};
  REQUIRE(until([&] { return poll_once(p.in) && poll_once(p.out) && deliver(p.out, from.data(), 4096, tag); }));
  tuttiMessage message{};
  REQUIRE(until([&] { return poll_once(p.in) && p.in.peek(&message); }));
  CHECK(message.data == nullptr);
  CHECK(message.bytes == 4096);
  CHECK(message.tag.word[0] == 5);
  CHECK(std::string(to.behind(), 4096) == std::string(4096, 0));
  p.in.release();
  CHECK(p.out.unsent() == 0);
}

TEST_CASE("what was required or exposed and is revoked is left alone", "[device]") {
  Pair p = make_pair(verbs_transport());
  DeviceMemory from(4096), to(4096);
  REQUIRE(p.in.post(0, to.data(), 4096, true));
  REQUIRE(until([&] { return poll_once(p.out) && p.out.acquire() != nullptr; }));
  usleep(2000);
  p.in.revoke();
  memset(from.behind(), 7, 4096);
  (void)deliver(p.out, from.data(), 4096, tuttiTag{});
  p.out.revoke();
  CHECK(p.out.unsent() == 0);
  usleep(2000);
  CHECK(std::string(to.behind(), 4096) == std::string(4096, 0));
}

TEST_CASE("an endpoint says what it cannot register", "[device]") {
  auto endpoint = open_endpoint(verbs_transport(), 0).value();
  REQUIRE(endpoint.delivers());
  DeviceMemory good(4096);
  CHECK(endpoint.registers(good.data(), 4096));
  std::vector<char> stranger(64);
  const auto refused = endpoint.registers(stranger.data(), 64);
  REQUIRE_FALSE(refused);
  CHECK(contains(refused.error().message, "not registered"));
  DeviceMemory bad(4096, Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)));
  const auto failed = endpoint.registers(bad.data(), 4096);
  REQUIRE_FALSE(failed);
  CHECK(contains(failed.error().message, "by its dmabuf"));
}

TEST_CASE("what was posted or exposed and is revoked is left alone", "[device]") {
  Pair p = make_pair(verbs_transport());
  Registered to(4096), from(4096);
  p.in.post(0, to.data.data(), 4096);
  usleep(2000);
  REQUIRE(poll_once(p.out));
  p.in.revoke();
  REQUIRE(p.out.publish(from.data.data(), 4096, tuttiTag{}));
  p.out.revoke();
  CHECK(p.out.unsent() == 0);
  CHECK_FALSE(poll_once(p.out));
  usleep(2000);
  CHECK(to.data == std::vector<char>(4096));
}

TEST_CASE("registered memory: what is used longest ago goes first, what is too much or gone is not there") {
  const Ports none;  // they know all memory
  UserMemory memory(config_of(0), none, 3 << 20);
  Registered a(1 << 20), b(1 << 20), c(1 << 20), d(1 << 20), large(4 << 20);
  const auto find = [&](Registered& r) { return memory.find(r.data.data() + 5, 100); };
  std::weak_ptr<const Pinned> first = find(a), second = find(b), third = find(c);
  CHECK_FALSE((first.expired() || second.expired() || third.expired()));
  CHECK(find(a) == first.lock());
  CHECK(find(d) != nullptr);
  CHECK(second.expired());
  CHECK_FALSE((first.expired() || third.expired()));
  CHECK(find(large) == nullptr);
  CHECK_FALSE(first.expired());
  CHECK(memory.find(d.data.data() + (1 << 20) - 5, 6) == nullptr);
  SharedMemory::remove(a.id);
  CHECK(memory.find(a.data.data(), 100) == nullptr);
  CHECK(first.expired());
  CHECK(find(b) != nullptr);
  CHECK_FALSE(third.expired());
}

TEST_CASE("a limit of locked memory is named", "[device]") {
  Child child([](Mailbox&) -> std::string {
    auto ports = Port::open_all();
    const rlimit little{65536, 65536};
    // Root may lock any amount.
    if (!ports || setrlimit(RLIMIT_MEMLOCK, &little) != 0 || setuid(65534) != 0) return "cannot be set up";
    const auto pinned = Pinned::allocate(ports.value(), 1 << 20);
    if (pinned) return "it was locked";
    return contains(pinned.error().message, "may lock 65536 bytes") ? "" : pinned.error().message;
  });
  CHECK(child.ended_well());
}

TEST_CASE("a peer whose memory may not be written: the error says so, with its rank", "[device]") {
  auto ports = Port::open_all();
  auto listener = Listener::open();
  REQUIRE((ports && listener));
  Hub hub{std::move(ports).value(), UserMemory(config_of(0), hub.ports, 0), 1};
  Key key;
  key.fill(7);
  const tuttiLinkConfig config = Ask{1};
  Acceptor acceptor(std::move(listener.value().fds), key, HelloKind::kVerbs, 1);
  std::vector<PortAddress> addresses;
  for (const auto& port : hub.ports) addresses.push_back(port->address());
  auto out = SendLink::create(hub, {key, HelloKind::kVerbs, 0, 1, to_hello_args(config)}, listener.value().contact,
                              addresses, config);
  REQUIRE(out);
  auto& sender = static_cast<SendLink&>(*out.value());
  std::optional<Acceptor::Accepted> accepted;
  REQUIRE(until([&] {
    (void)sender.poll();
    return (accepted = acceptor.next()).has_value();
  }));
  (void)sender.poll();
  Offer offer;
  REQUIRE(recv_all(accepted->fd.get(), &offer, sizeof offer, Deadline::after_seconds(kPatienceSeconds)));
  // The answer passes through this test, which changes its key.
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  const Fd ours(ends[0]);
  auto in = RecvLink::create(hub, {Fd(ends[1])}, Ask{0}, offer);
  REQUIRE(in);
  Answer answer;
  REQUIRE(recv_all(ours.get(), &answer, sizeof answer, Deadline::after_seconds(kPatienceSeconds)));
  for (QueueAddress& queue : answer.queues) queue.key ^= 0x5a00;
  REQUIRE(send_all(accepted->fd.get(), &answer, sizeof answer, Deadline::after_seconds(kPatienceSeconds)));
  void* slot = nullptr;
  REQUIRE(until([&] { return sender.acquire(nullptr, 0, TUTTI_NOT_POSTED, &slot) == TUTTI_SLOT || !sender.poll(); }));
  REQUIRE(slot != nullptr);
  sender.publish(nullptr, 10, tuttiTag{});
  std::optional<Error> error;
  REQUIRE(until([&] {
    if (auto state = sender.poll(); !state) error = state.error();
    return error.has_value();
  }));
  CHECK(error->code == Code::kRemoteError);
  CHECK(error->culprit_rank == 1);
  CHECK(contains(error->message, "rank 1"));
  CHECK(contains(error->message, "does not let this rank write"));
}
