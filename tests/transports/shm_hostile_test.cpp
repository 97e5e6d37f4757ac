// A member of the group that writes anything into the shared segment at any time: the other side still reads and writes
// nowhere else than it would anyway.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>
#include <random>

#include "base/socket.h"
#include "strangers.h"

using namespace tutti;
using namespace tutti::test;
using namespace tutti::shm;

namespace {

constexpr uint32_t kSlots = 4, kSlotBytes = 4096, kBlockBytes = 8192;

// The receiving half of a link whose sender, to the kernel, is another process, but is controlled by the test.
struct Prey {
  Child sender{[](Mailbox& mail) -> std::string {
    const auto name = mail.receive();
    auto fd = connect_start(unix_abstract_address(*name));
    return fd && mail.send("connected") && mail.receive() ? "" : "no connection";
  }};
  Fd hostile_socket;  // the other end of the link's socket
  Segment theirs;
  std::optional<RecvLink> link;

  Prey() {
    const std::string name = "tutti-test-prey-" + std::to_string(getpid());
    auto listener = listen_unix_abstract(name);
    REQUIRE(listener);
    REQUIRE(sender.mail().send(name));
    Fd socket;
    REQUIRE(until([&] { return static_cast<bool>(socket = accept_one(listener.value().get())); }));
    REQUIRE(sender.mail().receive());
    Fd memfd;
    auto made = Segment::create(kSlots, kSlotBytes, &memfd);
    REQUIRE(made);
    theirs = std::move(made).value();
    auto mapped = Segment::map(memfd, kSlots, kSlotBytes);
    REQUIRE(mapped);
    auto exchange = std::make_shared<Exchange>();
    REQUIRE(exchange->take(Exchange::Side::kReceive));
    link.emplace(0, std::move(socket), std::move(mapped).value(), exchange, nullptr);
  }
  SlotLine& publish(uint64_t number, uint32_t where, uint64_t at, uint32_t bytes) {
    SlotLine& line = theirs.line(static_cast<uint32_t>((number - 1) % theirs.lines()));
    line.where = where;
    line.at = at;
    line.bytes = bytes;
    line.published.store(number, std::memory_order_release);
    return line;
  }
};

// What rank 1 receives, by hand, of a link from rank 0.
struct Taken {
  Fd socket;
  Segment segment;
};
Result<Taken> take_link(Mailbox& mail) {
  const auto none = [](const char* what) { return Error{Code::kSystemError, what}; };
  Impostor impostor = listen_as_impostor(&kShmTransport);
  if (!mail.send(impostor.address)) return none("no mail");
  Acceptor acceptor(only(std::move(impostor.listener)), key_of(7), HelloKind::kShm, 1);
  std::optional<Acceptor::Accepted> accepted;
  if (!until([&] { return (accepted = acceptor.next()).has_value(); })) return none("nobody came");
  Fd memfd;
  if (!until([&] {
        auto received = receive_descriptor(accepted->fd.get());
        if (received && received.value()) memfd = *std::move(received).value();
        return static_cast<bool>(memfd);
      }))
    return none("no memory came");
  TUTTI_TRY_ASSIGN(Segment segment, Segment::map(memfd, Ask().slots, Ask().slot_bytes));
  return Taken{std::move(accepted->fd), std::move(segment)};
}

// Rank 1 makes a link to rank 0 by hand, with a segment of this number, and says that its first message is at `at`.
std::string make_link(std::string_view address, uint64_t id, const void* at) {
  ShmAddress peer;
  memcpy(&peer, address.data(), std::min(address.size(), sizeof peer));
  const tuttiLinkConfig config{sizeof config, 1, 0, Ask().slots, Ask().slot_bytes, 0};
  static std::optional<Dialer> dialer;  // its socket must stay open as long as the process runs
  dialer.emplace(Dialer::Call{key_of(7), HelloKind::kShm, 1, 0, to_hello_args(config)},
                 std::vector<Address>{unix_abstract_address(peer.name)});
  if (!until([&] { return dialer->advance() == Dialer::Status::kDone; })) return "no connection";
  static Fd socket = dialer->take();
  Fd memfd;
  static Segment segment = Segment::create(config.slots, config.slot_bytes, &memfd).value();
  segment.header().id = id;
  SlotLine& line = segment.line(0);
  line.where = kAtAddress;
  line.at = reinterpret_cast<uintptr_t>(at);
  line.bytes = 8;
  line.published.store(1);
  return send_with_descriptor(socket.get(), &kMapped, 1, memfd) ? "" : "its memory was not taken";
}

}  // namespace

TEST_CASE("shm: memory of the peer's that becomes longer or moves after it was checked stays as it was") {
  PeerMemory memory(false);
  const Fd file(memfd_create("tutti-test", MFD_CLOEXEC));
  REQUIRE(ftruncate(file.get(), kBlockBytes) == 0);
  memory.take_notice({kFirstBlock, 0, 2 * kBlockBytes}, file, 0);
  CHECK_FALSE(memory.knows(kFirstBlock));  // it is longer than its file
  memory.take_notice({kFirstBlock, 0, kBlockBytes}, file, 0);
  CHECK(memory.find(kFirstBlock, kBlockBytes - 1, 1) != nullptr);
  CHECK(memory.find(kFirstBlock, kBlockBytes - 1, 2) == nullptr);
  CHECK(memory.find(kFirstBlock, ~uint64_t{0}, 2) == nullptr);
}

TEST_CASE("shm: a block that could not be mapped is told of with the reason") {
  PeerMemory memory(false);
  const Fd file(memfd_create("tutti-test", MFD_CLOEXEC));
  REQUIRE(ftruncate(file.get(), kBlockBytes) == 0);
  memory.take_notice({kFirstBlock, 0, kBlockBytes}, Fd(), 0);
  CHECK(contains(memory.why_not().message, "ulimit -n"));
  CHECK(memory.why_not().code == Code::kSystemError);  // this process's own lack
  const Fd unreadable(open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_WRONLY | O_CLOEXEC));
  REQUIRE(unreadable);
  memory.take_notice({kFirstBlock, 0, kBlockBytes}, unreadable, 0);
  CHECK(contains(memory.why_not().message, strerror(EACCES)));
}

TEST_CASE("shm: a block in huge pages is mapped wherever it begins and ends, and given back") {
  const Fd file(memfd_create("tutti-huge", MFD_CLOEXEC | MFD_HUGETLB));
  struct stat info {};
  REQUIRE((!file || fstat(file.get(), &info) == 0));
  const auto page_bytes = static_cast<size_t>(info.st_blksize);
  void* owner = MAP_FAILED;
  if (file && ftruncate(file.get(), static_cast<off_t>(2 * page_bytes)) == 0)
    owner = mmap(nullptr, 2 * page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (owner == MAP_FAILED) {
    WARN("skipped: this machine has no huge pages (vm.nr_hugepages)");
    return;
  }
  constexpr uint64_t kOffset = 4096 + 64;
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    size_t n = 0;
    for (std::string line; std::getline(maps, line);) n += contains(line, "tutti-huge");
    return n;
  };
  PeerMemory memory(false);
  memory.take_notice({kFirstBlock, kOffset, page_bytes}, file, 0);
  static_cast<char*>(owner)[kOffset + 5] = 'x';
  const char* const there = memory.find(kFirstBlock, 5, page_bytes - 5);
  REQUIRE(there != nullptr);
  CHECK(*there == 'x');
  CHECK(mappings() == 2);
  memory.take_notice({kFirstBlock, 0, 0}, Fd(), 0);
  CHECK(mappings() == 1);
  munmap(owner, 2 * page_bytes);
}

TEST_CASE("shm: a peer has so many blocks mapped here and no more") {
  PeerMemory memory(false);
  const Fd file(memfd_create("tutti-test", MFD_CLOEXEC));
  REQUIRE(ftruncate(file.get(), kBlockBytes) == 0);
  constexpr uint64_t kMost = 1 << 14;
  for (uint64_t i = 0; i <= kMost; i++) memory.take_notice({kFirstBlock + i, 0, kBlockBytes}, file, 0);
  CHECK(memory.knows(kFirstBlock + kMost - 1));
  CHECK_FALSE(memory.knows(kFirstBlock + kMost));
  memory.take_notice({kFirstBlock, 0, 0}, Fd(), 0);
  memory.take_notice({kFirstBlock + kMost, 0, kBlockBytes}, file, 0);
  CHECK(memory.knows(kFirstBlock + kMost));  // one is forgotten, so there is room
}

TEST_CASE("shm: a peer is told of so many blocks as it maps, and no more") {
  constexpr rlim_t kMost = 1 << 14;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit enough{std::max(before.rlim_cur, kMost + 500), before.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &enough) != 0) {
    WARN("skipped: this needs a descriptor for each of 16,384 blocks (ulimit -Hn)");
    return;
  }
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  Connection mine(1, false, nullptr), theirs(0, false, nullptr);
  mine.open(Fd(ends[0]));
  theirs.open(Fd(ends[1]));
  std::vector<void*> blocks;
  const auto share_one_more = [&] {
    uint32_t where = 0;
    uint64_t at = 0;
    blocks.push_back(SharedMemory::allocate(64).value());
    if (!mine.describe(blocks.back(), 64, &where, &at)) return false;
    if (theirs.locate(where, at, 64) == nullptr) FAIL("block " << blocks.size() << ": " << theirs.why_not().message);
    return true;
  };
  while (blocks.size() <= kMost && share_one_more()) continue;
  CHECK(blocks.size() == kMost + 1);
  SharedMemory::free(std::exchange(blocks[0], nullptr));
  mine.tell_news();
  CHECK(share_one_more());  // one is forgotten, so there is room
  for (void* block : blocks) SharedMemory::free(block);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("shm: a block whose number would be another block's, or mean something else, is not shared") {
  CHECK(OwnMemory::has_number(~uint32_t{0} - kFirstBlock));
  CHECK_FALSE(OwnMemory::has_number(uint64_t{~uint32_t{0}} - kFirstBlock + 1));
  CHECK_FALSE(OwnMemory::has_number(uint64_t{1} << 32));
}

TEST_CASE("shm: what is said of a message counts as it was when it was looked at") {
  Prey prey;
  tuttiMessage message{};
  SlotLine& line = prey.publish(1, kAtAddress, 64, 100);
  REQUIRE(prey.link->peek(&message));
  CHECK(message.bytes == 100);
  line.where = kInPlace;
  line.bytes = 1 << 30;
  CHECK_FALSE(prey.link->read());  // an address in another process
  line.where = kPassedOn;
  prey.link->release();
}

TEST_CASE("shm: a place holds for one message of one length") {
  Prey prey;
  auto memory = SharedMemory::allocate(kBlockBytes);
  REQUIRE(memory);
  void* const place = memory.value();
  tuttiMessage message{};
  const auto is_refused = [&] {
    REQUIRE(prey.link->peek(&message));
    const bool refused = message.data == nullptr && !prey.link->read();
    prey.link->release();
    return refused;
  };
  prey.publish(1, kInPlace, 0, 3000);
  CHECK(is_refused());  // nothing was posted
  prey.link->post(1, place, 3000, false);
  prey.publish(2, kInPlace, 0, 3000);
  CHECK(is_refused());  // only the next one may be placed
  prey.publish(3, kInPlace, 0, 3000);
  REQUIRE(prey.link->peek(&message));
  CHECK(message.data == place);
  prey.link->release();
  prey.link->post(1, place, 3000, false);
  prey.publish(4, kInPlace, 0, 3000);
  CHECK(is_refused());  // no longer posted
  prey.publish(5, kInPlace, 0, 3001);
  CHECK(is_refused());
  SharedMemory::free(place);
}

TEST_CASE("shm: whatever is in the segment, a receiver looks for messages nowhere else") {
  Prey prey;
  std::mt19937_64 random(GENERATE(1u, 2u, 3u));
  const auto one_of = [&](std::initializer_list<uint64_t> all) { return all.begin()[random() % all.size()]; };
  SegmentHeader& header = prey.theirs.header();
  tuttiMessage message{};
  char to[kSlotBytes];
  for (uint64_t number = 1; number <= times(20000); number++) {
    const uint32_t where = static_cast<uint32_t>(one_of({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 4000, random()}));
    const uint64_t at = one_of({0, 1, 5, kSlots, ~uint64_t{0}, random()});
    const auto bytes = static_cast<uint32_t>(one_of({0, 1, 16, 512, kSlotBytes, kSlotBytes + 1, random()}));
    SlotLine& line = prey.publish(number, where, at, bytes);
    if (random() % 8 == 0) new (&header.reading) RevocableAccess<>();
    if (random() % 8 == 0) header.reading.revoke();
    if (random() % 8 == 0) header.sender_sleeps.store(static_cast<uint32_t>(random() % 2));
    if (random() % 8 == 0) header.paired_with.store(random());
    const bool matches = random() % 2 == 0;
    const void* data = nullptr;
    size_t length = bytes;
    if (matches) data = prey.link->match(bytes, line.tag);
    if (data == nullptr) {
      REQUIRE(prey.link->peek(&message));
      data = message.data;
      length = message.bytes;
    }
    line.where = static_cast<uint32_t>(random());
    line.bytes = static_cast<uint32_t>(random());
    REQUIRE(length <= kSlotBytes);
    if (data != nullptr) {
      // It is mapped at different addresses on both sides: what belongs to the segment changes with it.
      memcpy(to, data, length);
    } else {
      REQUIRE_FALSE(prey.link->read());
    }
    prey.link->release();
  }
}

// The link to a hostile rank 1 that sends its address, once the link is ready.
static Link make_ready(Endpoint& mine, Child& hostile) {
  const auto address = hostile.mail().receive();
  REQUIRE(address);
  auto out = mine.connect(Ask{1}, *address);
  REQUIRE(out);
  REQUIRE(until([&] { return poll_once(out.value()).ready; }));
  return std::move(out).value();
}

TEST_CASE("shm: who says that it is in this process and is not writes nothing here, and has nothing written") {
  static std::array<char, 3000> target;
  target.fill('.');
  auto mine = open_endpoint(&kShmTransport, 0);
  REQUIRE(mine);
  // Rank 1, in another process.
  Child hostile([](Mailbox& mail) -> std::string {
    const auto taken = take_link(mail);
    if (!taken) return taken.error().message;
    SegmentHeader& header = taken.value().segment.header();
    header.posted_bytes = static_cast<uint32_t>(target.size());
    header.posted_where = kAtAddress;
    header.posted_at = reinterpret_cast<uintptr_t>(target.data());
    header.posted.store(1);
    if (!send_raw(taken.value().socket, &kMapped, 1)) return "no answer";
    return mail.receive() ? "" : "no end";
  });
  Link out = make_ready(mine.value(), hostile);
  REQUIRE(out.acquire() != nullptr);
  const auto bytes = static_cast<uint32_t>(target.size());
  CHECK(posted_place(out, bytes) == nullptr);
  void* at = nullptr;
  CHECK(out.acquire(target.data(), bytes, TUTTI_NOT_POSTED, &at) == TUTTI_SLOT);
  REQUIRE(hostile.mail().send("end"));
  CHECK(hostile.ended_well());
}

TEST_CASE("shm: a peer that sends bells is there, one that sends part of a notice has gone") {
  auto mine = open_endpoint(&kShmTransport, 0);
  REQUIRE(mine);
  Child hostile([](Mailbox& mail) -> std::string {
    const auto taken = take_link(mail);
    if (!taken) return taken.error().message;
    const Fd& socket = taken.value().socket;
    const std::string bells(300, kBell), part{kNotice, 'x', 'y'};
    if (!send_raw(socket, &kMapped, 1) || !send_raw(socket, bells.data(), bells.size())) return "no answer";
    if (!mail.receive() || !send_raw(socket, part.data(), part.size())) return "no notice";
    return mail.receive() ? "" : "no end";
  });
  Link out = make_ready(mine.value(), hostile);
  for (int i = 0; i < 1000; i++) REQUIRE(poll_once(out));
  REQUIRE(hostile.mail().send("go on"));
  check_gone(out, "rank 1");
  REQUIRE(hostile.mail().send("end"));
  CHECK(hostile.ended_well());
}

TEST_CASE("shm: who gives its link the number of one that it was given reads nothing here either") {
  static uint64_t target = 7;
  auto mine = open_endpoint(&kShmTransport, 0);
  REQUIRE(mine);
  Child hostile([](Mailbox& mail) -> std::string {
    const auto taken = take_link(mail);
    if (!taken) return taken.error().message;
    const auto address = mail.receive();
    if (!address) return "no address";
    const std::string failed = make_link(*address, taken.value().segment.header().id, &target);
    if (!failed.empty()) return failed;
    return mail.receive() ? "" : "no end";
  });
  const auto address = hostile.mail().receive();
  REQUIRE(address);
  auto out = mine.value().connect(Ask{1}, *address);
  REQUIRE(out);
  REQUIRE(hostile.mail().send(mine.value().address()));
  Link in;
  REQUIRE(until([&] { return (void)poll_once(out.value()), take(mine.value(), &in); }));
  tuttiMessage message{};
  REQUIRE(in.peek(&message));
  CHECK(message.data == nullptr);
  CHECK_FALSE(in.read());
  REQUIRE(hostile.mail().send("end"));
  CHECK(hostile.ended_well());
}
