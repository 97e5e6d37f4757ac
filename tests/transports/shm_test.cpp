// Guarantees that only shm has: memory by descriptor, and what a peer may hand over.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <random>
#include <set>
#include <thread>

#include "base/membarrier.h"
#include "strangers.h"
#include "traffic.h"
#include "transports/shm/segment.h"

using namespace tutti;
using namespace tutti::test;

namespace {

constexpr Ask kAsk{1, 0, 4, 4096};

// Something that a rank may hand over instead of its segment.
Fd memfd(size_t bytes, int seals) {
  Fd fd(memfd_create("tutti-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 || fcntl(fd.get(), F_ADD_SEALS, seals) != 0) fd.reset();
  return fd;
}

size_t right_bytes() {
  Fd fd;
  const auto segment = shm::Segment::create(kAsk.slots, kAsk.slot_bytes, &fd);
  REQUIRE(segment);
  return static_cast<size_t>(lseek(fd.get(), 0, SEEK_END));
}

bool hand_over(const Fd& line, const std::vector<int>& fds) {
  char byte = 'R';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  return ::sendmsg(line.get(), &message, MSG_NOSIGNAL) == 1;
}

// Rank 0 authenticates and hands over these descriptors. Does it get a link?
bool gets_in(Endpoint& to, const std::vector<int>& fds) {
  const Fd line = authenticate(to, kAsk);
  REQUIRE(line);
  REQUIRE(hand_over(line, fds));
  Link in;
  bool accepted = false;
  char answer = 0;
  ssize_t n = -1;
  REQUIRE(until([&] {
    accepted = take(to, &in) || accepted;
    n = ::recv(line.get(), &answer, 1, MSG_DONTWAIT);
    return n >= 0 || (errno != EAGAIN && errno != EINTR);
  }));
  CHECK((n == 1) == accepted);
  return accepted;
}

}  // namespace

// Any order of sending and receiving, in one direction, if no payload comes back.
TEST_CASE("shm: twice as many messages are under way as there are slots, if none is longer than half of one") {
  Pair p = make_pair(&kShmTransport, kAsk);
  constexpr uint32_t kSizes[] = {16, 512, 600, 2048, 2049, 4096};
  std::mt19937 random(GENERATE(1u, 2u, 3u));
  std::deque<uint32_t> under_way;  // bytes of each
  uint32_t sent = 0, received = 0, most = 0;
  const auto long_ones = [&] {
    return std::count_if(under_way.begin(), under_way.end(), [](uint32_t bytes) { return bytes > 2048; });
  };
  while (received < 5000) {
    const uint32_t bytes = kSizes[random() % (random() % 8 == 0 ? 6 : 4)];
    const bool pushes = random() % 2 == 0;
    if (random() % 2 == 0) {
      const bool has_room = under_way.size() < kAsk.slots || (under_way.size() < 2 * kAsk.slots && bytes <= 2048);
      const std::vector<char> data(bytes, static_cast<char>(sent));
      void* const slot = pushes ? nullptr : p.out.acquire(bytes);
      if (slot != nullptr) memset(slot, data[0], bytes);
      if (pushes ? p.out.push(data.data(), bytes, {}) == 2 : slot != nullptr && p.out.publish(bytes, {}) == 2) {
        REQUIRE(has_room);
        under_way.push_back(bytes);
        sent++;
      } else {
        REQUIRE((!has_room || long_ones() > 0));
      }
      most = std::max(most, static_cast<uint32_t>(under_way.size()));
    } else if (tuttiMessage message{}; p.in.peek(&message)) {
      const char* const data = static_cast<const char*>(message.data);
      REQUIRE(message.bytes == under_way.front());
      REQUIRE(std::count(data, data + message.bytes, static_cast<char>(received)) == message.bytes);
      p.in.release();
      under_way.pop_front();
      received++;
    }
  }
  CHECK(most == 2 * kAsk.slots);
}

TEST_CASE("shm: a rank sends in the payload that it has received last, and any that it has left when that is not its") {
  Pair p = make_pair(&kShmTransport, kAsk);
  Link out, in;
  REQUIRE(join(p.receiver, Ask{0, kAsk.channel, kAsk.slots, kAsk.slot_bytes}, p.sender, &out, &in));
  const tuttiTag tag{};
  tuttiMessage message{};
  SECTION("by turns it is one payload") {
    for (int i = 0; i < 10; i++) {
      void* const payload = p.out.acquire();
      memset(payload, i, 100);
      p.out.publish(100, tag);
      REQUIRE(p.in.peek(&message));
      CHECK(static_cast<const char*>(message.data)[99] == i);
      void* const before = out.acquire();
      CHECK(before != message.data);
      p.in.release();
      CHECK(out.acquire() == before);
      out.publish(8, tag);  // it travels in the line, so the payload stays
      CHECK(out.acquire() == message.data);
      out.publish(100, tag);
      REQUIRE(in.peek(&message));
      in.release();
      REQUIRE(in.peek(&message));
      in.release();
      CHECK(p.out.acquire() == payload);
    }
  }
  SECTION("a small message that was matched has brought none") {
    REQUIRE(p.out.acquire() != nullptr);
    p.out.publish(100, tag);
    REQUIRE(p.in.peek(&message));
    p.in.release();
    REQUIRE(p.out.push("8 bytes", 8, tag));
    REQUIRE(p.in.match(8, tag) != nullptr);
    p.in.release();
    CHECK(out.acquire() == message.data);
    out.publish(100, tag);
    CHECK(out.acquire() != message.data);  // the payload is on its way
  }
  SECTION("all that are sent one way stay there") {
    std::set<const void*> payloads;
    for (uint32_t i = 0; i < 3 * kAsk.slots; i++) {
      REQUIRE(p.out.acquire() != nullptr);
      p.out.publish(100, tag);
      REQUIRE(p.in.peek(&message));
      payloads.insert(message.data);
      p.in.release();
    }
    CHECK(payloads.size() == 2 * kAsk.slots);
    for (uint32_t i = 0; i < kAsk.slots; i++) {
      CHECK(payloads.contains(out.acquire()));
      out.publish(100, tag);
    }
    CHECK(out.acquire() == nullptr);
  }
  SECTION("whatever comes and goes at once") {
    Sender there(p.out, {1, 20000}), back(out, {2, 20000});
    Receiver here(p.in, {1, 20000}), home(in, {2, 20000});
    CHECK(run_together({&there, &home, &back, &here}, [](Side& side) { return 1 + mix(side.count()) % 7; }) == "");
  }
}

// Otherwise the peer would confuse one link's payload with another's.
TEST_CASE("shm: payloads go back only by the link that the peer has paired with theirs, and if both are of one size") {
  using shm::Exchange;
  const uint32_t slot_bytes = GENERATE(4096u, 8192u);
  Fd ours, theirs;
  auto sending = shm::Segment::create(4, 4096, &ours), receiving = shm::Segment::create(4, slot_bytes, &theirs);
  REQUIRE((sending && receiving));
  sending.value().header().id = 77;
  receiving.value().header().id = 11;
  Exchange exchange;
  exchange.set(Exchange::Side::kSend, std::move(sending).value());
  CHECK(exchange.choose()->mine);
  exchange.set(Exchange::Side::kReceive, std::move(receiving).value());
  CHECK(exchange.segment(Exchange::Side::kSend).header().paired_with == 11);
  auto& paired = exchange.segment(Exchange::Side::kReceive).header().paired_with;
  exchange.take_in({false, 2});
  CHECK(exchange.choose()->mine);  // the peer has not paired yet
  paired = 78;
  CHECK(exchange.choose()->mine);  // paired with an earlier link
  paired = 77;
  exchange.take_in({false, 3});
  const auto last = exchange.choose();
  REQUIRE(last);
  CHECK(last->mine == (slot_bytes != 4096));
  if (!last->mine) CHECK(last->index == 3);
}

// Whatever the peer claims to have passed on.
TEST_CASE("shm: a rank has no more payloads than both links have, and sends in none of another size") {
  using shm::Exchange;
  Fd ours, theirs;
  auto sending = shm::Segment::create(4, 4096, &ours), receiving = shm::Segment::create(4, 8192, &theirs);
  REQUIRE((sending && receiving));
  Exchange exchange;
  exchange.set(Exchange::Side::kSend, std::move(sending).value());
  exchange.set(Exchange::Side::kReceive, std::move(receiving).value());
  for (uint32_t i = 0; i < 100; i++) exchange.take_in({false, i % 4});
  for (int i = 0; i < 4; i++) {
    const auto payload = exchange.choose();
    REQUIRE(payload);
    CHECK(payload->mine);
    exchange.give(*payload);
  }
  CHECK_FALSE(exchange.choose());  // the rest are the peer's
  for (uint32_t i = 0; i < 100; i++) exchange.take_in({true, i % 4});
  int n = 0;
  for (auto payload = exchange.choose(); payload && n < 100; payload = exchange.choose(), n++) exchange.give(*payload);
  CHECK(n == 4);
}

TEST_CASE("shm: only sealed memory of the right size makes a link, and no descriptor stays behind") {
  auto b = open_endpoint(&kShmTransport, 1);
  REQUIRE(b);
  const size_t bytes = right_bytes();
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  const Fd good = memfd(bytes, kSeals), unsealed = memfd(bytes, F_SEAL_GROW), small = memfd(bytes - 4096, kSeals),
           large = memfd(bytes + 4096, kSeals), empty = memfd(0, kSeals),
           read_only = memfd(bytes, kSeals | F_SEAL_WRITE);
  REQUIRE((good && unsealed && small && large && empty && read_only));
  FILE* file = tmpfile();
  REQUIRE(file != nullptr);
  REQUIRE(ftruncate(fileno(file), static_cast<off_t>(bytes)) == 0);
  int pipe_ends[2];
  REQUIRE(pipe2(pipe_ends, O_CLOEXEC) == 0);
  const Fd pipe_in(pipe_ends[0]), pipe_out(pipe_ends[1]);
  const size_t before = open_descriptors();

  CHECK(gets_in(b.value(), {good.get()}));
  CHECK_FALSE(gets_in(b.value(), {unsealed.get()}));
  CHECK_FALSE(gets_in(b.value(), {small.get()}));
  CHECK_FALSE(gets_in(b.value(), {large.get()}));
  CHECK_FALSE(gets_in(b.value(), {empty.get()}));
  CHECK_FALSE(gets_in(b.value(), {read_only.get()}));
  CHECK_FALSE(gets_in(b.value(), {fileno(file)}));
  CHECK_FALSE(gets_in(b.value(), {pipe_in.get()}));
  CHECK_FALSE(gets_in(b.value(), {}));
  gets_in(b.value(), {unsealed.get(), good.get(), small.get()});
  CHECK(open_descriptors() == before);
  fclose(file);
  check_open_for_ranks(b.value());
}

TEST_CASE("shm: a peer that goes between handshake and memory is forgotten") {
  auto b = open_endpoint(&kShmTransport, 1);
  REQUIRE(b);
  const size_t before = open_descriptors();
  for (int i = 0; i < 10; i++) REQUIRE(authenticate(b.value(), kAsk));
  Link in;
  CHECK(until([&] { return !take(b.value(), &in) && open_descriptors() == before; }));
  check_open_for_ranks(b.value());
}

TEST_CASE("shm: a peer that authenticates and then hangs up, or talks nonsense, fails the link") {
  auto a = open_endpoint(&kShmTransport, 0);
  REQUIRE(a);
  const bool talks = GENERATE(false, true);
  Impostor impostor = listen_as_impostor(&kShmTransport);
  Acceptor acceptor(only(std::move(impostor.listener)), key_of(7), HelloKind::kShm, 1);
  auto link = a.value().connect(kAsk, impostor.address);
  REQUIRE(link);
  std::optional<Acceptor::Accepted> accepted;
  REQUIRE(until([&] { return poll_once(link.value()) && (accepted = acceptor.next()); }));
  for (int i = 0; i < 10; i++) REQUIRE_FALSE(poll_once(link.value()).ready);
  if (talks) REQUIRE(send_raw(accepted->fd, "no", 2));
  if (!talks) accepted->fd.reset();
  const auto error = poll_to_failure(link.value());
  REQUIRE(error);
  CHECK(contains(error->text, "rank 1"));
  for (int i = 0; i < 100; i++) CHECK_FALSE(poll_once(link.value()));
}

// As if it had no descriptor left for one.
TEST_CASE("shm: a peer of this process that has no bell is woken by the socket") {
  auto a = open_endpoint(&kShmTransport, 0);
  REQUIRE(a);
  Impostor impostor = listen_as_impostor(&kShmTransport);
  Acceptor acceptor(only(std::move(impostor.listener)), key_of(7), HelloKind::kShm, 1);
  auto link = a.value().connect(kAsk, impostor.address);
  REQUIRE(link);
  std::optional<Acceptor::Accepted> accepted;
  REQUIRE(until([&] { return poll_once(link.value()) && (accepted = acceptor.next()); }));
  Fd memfd;
  REQUIRE(until([&] {
    auto received = shm::receive_descriptor(accepted->fd.get());
    if (received && received.value()) memfd = *std::move(received).value();
    return poll_once(link.value()) && memfd;
  }));
  auto segment = shm::Segment::map(memfd, kAsk.slots, kAsk.slot_bytes);
  REQUIRE(segment);
  REQUIRE(send_raw(accepted->fd, &shm::kMapped, 1));
  REQUIRE(until([&] { return poll_once(link.value()).ready; }));
  segment.value().header().receiver_sleeps = 1;
  REQUIRE(link.value().acquire() != nullptr);
  link.value().publish(8, tuttiTag{});
  char said = 0;
  CHECK(::recv(accepted->fd.get(), &said, 1, MSG_DONTWAIT) == 1);
  CHECK(said == shm::kBell);
}

TEST_CASE("shm: no file anywhere") {
  const auto leftovers = [] {
    size_t n = 0;
    DIR* dir = opendir("/dev/shm");
    while (const dirent* entry = dir != nullptr ? readdir(dir) : nullptr)
      // Flight recorders are files, too, and those of tests running in parallel come and go.
      n += strstr(entry->d_name, "tutti") != nullptr && strncmp(entry->d_name, "tutti-trace.", 12) != 0;
    if (dir != nullptr) closedir(dir);
    return n;
  };
  const size_t before = leftovers();
  Pair p = make_pair(&kShmTransport, Ask{1, 0, 64, 1 << 20});  // as much as a container's /dev/shm
  const Traffic traffic{31, 130, 1 << 20};
  Sender sender(p.out, traffic);
  Receiver receiver(p.in, traffic);
  CHECK(run_together({&sender, &receiver}) == "");
  CHECK(leftovers() == before);
}

TEST_CASE("shm: a full queue at the door is waited for") {
  auto a = open_endpoint(&kShmTransport, 0), b = open_endpoint(&kShmTransport, 1);
  REQUIRE((a && b));
  const Door door = door_of(b.value());
  rlimit before{};  // the soft one is often 1024
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit most{before.rlim_max, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &most) == 0);
  std::vector<Fd> queue;
  bool full = false;
  while (queue.size() < 5000) {
    auto fd = connect_start(door.address);
    full = !fd && fd.error().sys_errno == EAGAIN;
    if (!fd) break;
    queue.push_back(std::move(fd).value());
  }
  if (!full) {
    WARN("skipped: the queue does not fill up with the descriptors there are (ulimit -Hn)");
    queue.clear();
  }
  auto out = a.value().connect(kAsk, b.value().address());
  REQUIRE(out);
  for (int i = 0; i < 10; i++) REQUIRE(poll_once(out.value()));
  Link in;
  CHECK(until([&] { return !poll_once(out.value()) || take(b.value(), &in); }));
  CHECK(until([&] { return !poll_once(out.value()) || poll_once(out.value()).ready; }));
  CHECK(poll_once(out.value()));
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

// Each notification costs the sender a system call.
TEST_CASE("shm: who has woken up is sent no word of messages and slots") {
  Pair p = make_pair(&kShmTransport, kAsk);
  const auto sleep = [&](Link& link) {
    tuttiWait wait;
    link.wait_begin(&wait);
    pollfd fd{wait.fd, wait.events, 0};
    return ::poll(&fd, 1, 0);
  };
  tuttiMessage message{};
  for (int i = 0; i < 3; i++) {
    CHECK(sleep(p.in) == 0);
    p.in.wait_end();
    for (uint32_t slot = 0; slot < kAsk.slots; slot++) {
      REQUIRE(p.out.acquire() != nullptr);
      p.out.publish(0, tuttiTag{});
    }
    CHECK(sleep(p.out) == 0);
    p.out.wait_end();
    while (p.in.peek(&message)) p.in.release();
  }
}

// Each side stores, and then looks at what the other has stored; on two CPUs both would miss it now and then without
// the barrier in between. The pauses vary the time between the two.
TEST_CASE("shm: of one who falls asleep and one who does not, one sees the other") {
  for (const bool by_kernel : {false, true}) {
    if (by_kernel && !membarrier_is_there()) continue;
    const shm::SleepBarrier barrier(by_kernel);
    alignas(64) std::atomic<int> round{0};
    alignas(64) std::atomic<int> awake{0};
    alignas(64) std::atomic<int> asleep{0};
    alignas(64) std::atomic<int> looked{0};
    const int rounds = kSanitized ? 2000 : 50000;
    const auto reaches = [](const std::atomic<int>& number, int value) {
      for (int looks = 0; number.load() < value; looks++)
        if (looks > 1000) std::this_thread::yield();
    };
    int seen_by_awake = 0, missed = 0;
    std::thread busy([&] {
      for (int i = 1; i <= rounds; i++) {
        reaches(round, i);
        awake.store(i, std::memory_order_relaxed);
        barrier.busy_side();
        seen_by_awake = asleep.load(std::memory_order_relaxed);
        looked.store(i);
      }
    });
    for (int i = 1; i <= rounds; i++) {
      round.store(i);
      for (volatile int pause = 0; pause < i % 128;) pause = pause + 1;
      asleep.store(i, std::memory_order_relaxed);
      barrier.sleepy_side();
      const int seen = awake.load(std::memory_order_relaxed);
      reaches(looked, i);
      missed += seen < i && seen_by_awake < i;
    }
    busy.join();
    CHECK(missed == 0);
  }
}
