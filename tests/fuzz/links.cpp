// What arrives on a link: TCP frames, and what comes through the socket beside a shared-memory link. And what is sent
// before a link is made: addresses and hellos.
#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <filesystem>
#include <optional>

#include "base/socket.h"
#include "fuzz.h"
#include "transports/adapter.h"
#include "transports/shm/shm_link.h"
#include "transports/tcp/tcp_link.h"

namespace tutti {
namespace {

using fuzz::bytes_of;
using fuzz::expect;
using fuzz::Input;
using fuzz::SocketPair;

struct Received {
  std::string tag, payload;
  bool operator==(const Received&) const = default;
};

// The frames in a stream of bytes, up to the first invalid one.
std::vector<Received> frames_in(std::string_view stream, uint32_t slot_bytes) {
  std::vector<Received> frames;
  tcp::FrameHeader header;
  while (stream.size() >= sizeof header) {
    memcpy(&header, stream.data(), sizeof header);
    stream.remove_prefix(sizeof header);
    const bool good = header.check == check_of(header) && header.number == frames.size() && header.piece == 0 &&
                      header.bytes <= slot_bytes;
    if (!good || stream.size() < header.bytes) break;
    frames.push_back({bytes_of(header.tag), std::string(stream.substr(0, header.bytes))});
    stream.remove_prefix(header.bytes);
  }
  return frames;
}

// Messages come out as they went in, however they are cut and whenever they are taken.
void receive_over_tcp(Input& in) {
  SocketPair sockets;
  const tuttiLinkConfig config{
      sizeof config, 1, 0, 2 + static_cast<uint32_t>(in.below(3)), 64 * (1 + static_cast<uint32_t>(in.below(4))), 0};
  std::vector<tcp::SharedFd> connections;
  connections.emplace_back(std::move(sockets.ours));
  // The peer's rank is higher, so it sends nothing back over this side's connections.
  tcp::Door door(tuttiEndpointConfig{sizeof(tuttiEndpointConfig), 2}, Listener{});
  auto created = tcp::RecvLink::create(door, config, std::move(connections), 0);
  expect(static_cast<bool>(created), "there is memory for a few slots");
  tcp::RecvLink& link = *created.value();
  char place[256];
  std::vector<Received> received;
  std::string said;
  tuttiMessage message;
  const auto take = [&] {
    if (!link.peek(&message)) return false;
    received.push_back({bytes_of(message.tag), std::string(static_cast<const char*>(message.data), message.bytes)});
    link.release();
    return true;
  };
  while (!in.done()) {
    const uint8_t action = in.byte();
    tuttiWait wait{-1};
    if (action == 0) take();
    if (action == 1) link.wait_begin(&wait);
    if (action == 1 && !link.peek(&message)) link.post(0, place, in.byte(), false);
    if (action <= 2) [[maybe_unused]]
      const auto ready = link.poll();
    const std::string_view part = in.text(action > 2 ? action : 0);
    sockets.say(part);
    said += part;
  }
  sockets.hang_up();
  while (link.poll())
    while (take()) {
    }
  expect(received == frames_in(said, config.slot_bytes), "the messages are those that were sent");
}

Fd memory_file(size_t bytes, bool sealed) {
  Fd fd(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  expect(fd && ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0, "there is a file in memory");
  if (sealed) fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

// A descriptor to hand over: of memory, or of something else.
Fd some_descriptor(Input& in) {
  switch (in.below(4)) {
    case 0: return Fd();
    case 1: return Fd(open("/dev/null", O_RDWR | O_CLOEXEC));
    default: return memory_file(in.take<uint16_t>(), in.byte() % 2 == 0);
  }
}

uint64_t some_number(Input& in) {
  const uint8_t kind = in.byte();
  return kind == 255 ? in.take<uint64_t>() : kind > 200 ? in.take<uint16_t>() : kind;
}

void say_notice(const Fd& socket, Input& in) {
  const shm::BlockNotice notice{some_number(in), some_number(in), some_number(in)};
  send_with_descriptor(socket.get(), (shm::kNotice + bytes_of(notice)).data(), 1 + sizeof notice, some_descriptor(in));
}

// Exposed data must be in memory that exists, whatever its owner says.
void map_shared_memory(Input& in) {
  constexpr uint32_t kSlots = 2, kSlotBytes = 128;
  SocketPair sockets;
  Fd memfd;
  auto segment = shm::Segment::create(kSlots, kSlotBytes, &memfd);
  auto view = shm::Segment::map(memfd, kSlots, kSlotBytes);
  expect(segment && view, "there is shared memory");
  shm::RecvLink link(1, std::move(sockets.ours), std::move(segment).value(), std::make_shared<shm::Exchange>(),
                     std::make_shared<Fd>());
  for (uint64_t published = 0; !in.done();) {
    switch (in.below(4)) {
      case 0: say_notice(sockets.theirs, in); break;
      case 1: sockets.say(in.text(in.byte() % 64)); break;
      case 2: {
        tuttiWait wait{-1};
        link.wait_begin(&wait);
        link.wait_end();
        break;
      }
      default: {
        shm::SlotLine& line = view.value().line(static_cast<uint32_t>(published % view.value().lines()));
        line.bytes = static_cast<uint32_t>(some_number(in));
        line.where = some_number(in);
        if (line.where == shm::kAtAddress) line.where = shm::kInSlot;  // addresses are trusted
        line.at = some_number(in);
        line.published.store(++published);
        tuttiMessage message;
        expect(link.peek(&message), "a message is there");
        expect(message.bytes <= kSlotBytes, "no message is larger than a slot");
        const auto exposed = message.data == nullptr ? link.read() : Result<const void*>(message.data);
        if (exposed)
          expect(!std::string(static_cast<const char*>(exposed.value()), message.bytes).empty() || message.bytes == 0,
                 "what is exposed can be read");
        link.release();
      }
    }
  }
}

// Both ends of a shared-memory link whose receiver the fuzzer controls.
struct Prey {
  static constexpr uint32_t kSlots = 2, kSlotBytes = 128;

  Prey() {
    static const std::string name = "tutti-fuzz-" + std::to_string(getpid());
    static Acceptor acceptor(only(std::move(listen_unix_abstract(name)).value()), Key{}, HelloKind::kShm, 1);
    const tuttiLinkConfig config{sizeof config, 1, 0, kSlots, kSlotBytes, 0};
    link.emplace(Dialer::Call{Key{}, HelloKind::kShm, 0, 1, to_hello_args(config)}, unix_abstract_address(name), config,
                 std::make_shared<shm::Exchange>(), std::make_shared<Fd>());
    while (!socket) {
      expect(static_cast<bool>(link->poll()), "a receiver is found");
      if (auto accepted = acceptor.next()) socket = std::move(accepted->fd);
    }
    Result<std::optional<Fd>> memfd = std::optional<Fd>();
    while (memfd && !memfd.value()) {
      expect(static_cast<bool>(link->poll()), "a link goes on");
      memfd = shm::receive_descriptor(socket.get());
    }
    expect(static_cast<bool>(memfd), "memory comes");
    auto mapped = shm::Segment::map(*memfd.value(), kSlots, kSlotBytes);
    expect(static_cast<bool>(mapped), "it can be mapped");
    segment = std::move(mapped).value();
    expect(::send(socket.get(), &shm::kMapped, 1, MSG_NOSIGNAL) == 1, "a sender listens");
    for (Result<bool> ready = false; !ready.value(); ready = link->poll())
      expect(static_cast<bool>(ready), "it is taken");
  }

  std::optional<shm::SendLink> link;
  Fd socket;
  shm::Segment segment;
};

// A sender writes only into its segment and into memory that it was given, whatever its receiver says.
void send_to_shared_memory(Input& in) {
  Prey prey;
  shm::SegmentHeader& header = prey.segment.header();
  std::array<char, Prey::kSlotBytes> data{};
  for (uint64_t published = 0; !in.done();) {
    const auto bytes = static_cast<uint32_t>(in.byte() % (Prey::kSlotBytes + 1));
    switch (in.below(8)) {
      case 0: say_notice(prey.socket, in); break;
      case 1: fuzz::say(prey.socket, in.text(in.byte() % 64)); break;
      case 2: header.released.store(some_number(in)); break;
      case 3: {
        header.posted_bytes = in.byte() % 2 == 0 ? bytes : static_cast<uint32_t>(some_number(in));
        header.posted_where = static_cast<uint32_t>(some_number(in));
        if (header.posted_where == shm::kAtAddress) header.posted_where = shm::kInSlot;  // addresses are trusted
        header.posted_at = some_number(in);
        header.posted.store(published + in.below(3));
        break;
      }
      case 4: header.placing.revoke(); break;
      case 5: {
        tuttiWait wait{-1};
        prey.link->wait_begin(&wait);
        prey.link->wait_end();
        break;
      }
      case 6: published += prey.link->push(data.data(), bytes, {}) != 0 ? 1 : 0; break;
      default: {
        void* at = nullptr;
        const tuttiRoom room = prey.link->acquire(nullptr, bytes, TUTTI_IF_POSTED, &at);
        if (room == TUTTI_NO_ROOM) break;
        expect(at != nullptr && room != TUTTI_EXPOSED, "there is a place to write to");
        memset(at, 'x', bytes);
        published += prey.link->publish(nullptr, bytes, {}) != 0 ? 1 : 0;
      }
    }
  }
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// A segment is mapped only if it matches its announcement; no descriptor leaks.
void receive_a_segment(Input& in) {
  const size_t before = open_descriptors();
  {
    SocketPair sockets;
    const uint32_t slots = 2 + in.byte() % 3, slot_bytes = 64 * (1 + in.byte() % 3u);
    for (size_t n = in.below(3); n > 0; n--) {
      const std::string_view bytes = in.text(1 + in.byte() % 3);
      const Fd descriptor =
          in.byte() % 2 == 0 ? some_descriptor(in) : memory_file(8192 * (in.byte() % 3), in.byte() != 0);
      if (!bytes.empty()) send_with_descriptor(sockets.theirs.get(), bytes.data(), bytes.size(), descriptor);
    }
    if (in.byte() % 2 == 0) sockets.hang_up();
    for (int i = 0; i < 4; i++) {
      const auto memfd = shm::receive_descriptor(sockets.ours.get());
      if (!memfd || !memfd.value()) continue;
      const auto segment = shm::Segment::map(*memfd.value(), slots, slot_bytes);
      if (segment) memset(segment.value().payload(slots - 1), 1, slot_bytes);
    }
  }
  expect(open_descriptors() == before, "all descriptors are closed");
}

// Addresses and hellos from peers.
void read_addresses(Input& in) {
  static constexpr uint8_t kGroupKey[32] = {1};
  static auto endpoints = [] {
    tuttiEndpointConfig config{sizeof config, 0, 2, {}};
    memcpy(config.group_key, kGroupKey, sizeof kGroupKey);
    std::vector<Endpoint> opened;
    for (const tuttiTransport* table : {&kShmTransport, &kTcpTransport}) {
      auto endpoint = Endpoint::open(table, config);
      expect(static_cast<bool>(endpoint), "an endpoint can be opened");
      opened.push_back(std::move(endpoint).value());
    }
    return opened;
  }();
  const Hello hello = in.take<Hello>();
  if (const auto config = link_config_of(hello, 2))
    expect(config.value().peer < 2 && config.value().slots <= 64, "a link is with a rank, and has limits");
  const std::string bytes = in.byte() % 4 == 0 ? endpoints[in.below(2)].address() : std::string(in.rest());
  for (const Endpoint& endpoint : endpoints) {
    const bool own = bytes == endpoint.address();
    expect(!own || endpoint.unreachable_because(bytes).empty(), "an endpoint reaches its own address");
  }
}

using Target = void (*)(Input&);
constexpr Target kTargets[] = {receive_over_tcp, map_shared_memory, receive_a_segment, read_addresses,
                               send_to_shared_memory};

std::string frame(uint64_t number, const std::string& payload) {
  return bytes_of(tcp::make_header({{7, 1, 2, 3}}, number, static_cast<uint32_t>(payload.size()))) + payload;
}

std::string said(const std::string& bytes) {
  std::string script;
  for (size_t at = 0; at < bytes.size(); at += 50) {
    const std::string part = bytes.substr(at, 50);
    script += static_cast<char>(std::max<size_t>(part.size(), 3));
    script += part + std::string(part.size() < 3 ? 3 - part.size() : 0, '\0') + '\2' + '\0';
  }
  return script;
}

std::string of_target(char target, const std::string& bytes) {
  return std::string(1, target) + bytes;
}

}  // namespace
}  // namespace tutti

using namespace tutti;  // NOLINT

std::vector<std::string> fuzz_seeds() {
  std::string frames, many;
  for (uint64_t i = 0; i < 12; i++) {
    const std::string next = frame(i, std::string(i * 37 % 65, 'x'));
    if (i < 4) frames += next;
    many += next;
  }
  const Hello hello{{}, 0, 0, HelloKind::kTcp, 1, 0, {0, 4, 4096}, {}};
  const std::string file = {2, 0, 16, 1};  // 4096 bytes of memory
  // A notice of block 2, then a message in it.
  const std::string exposed = std::string{0, 2, 0, 100} + file + std::string{3, 60, 2, 40};
  return {
      of_target(0, {0, 0}) + said(frames), of_target(0, {2, 3}) + said(many), of_target(1, exposed),
      of_target(1, exposed + exposed + std::string{0, 2, 0, 0, 0} +
                       std::string{1, 5, 'B', 'B', 'B', 'B', 'B', 2, 3, 9, 0, 0}),
      of_target(2, {0, 0, 1, 0, 'R', 1, 1, 1, 0}),
      of_target(2, std::string{0, 0, 2, 0, 'R', 0} + file + std::string{0, 'R', 0, 1, 0}),
      // A notice of block 7, a place in it for the next message, and that message; then one that finds no room.
      of_target(4, std::string{0, 0, 7, 0, 100} + file + std::string{64, 3, 0, 7, 9, 1, 64, 7, 9, 6, 100, 7, 0, 2, 2}),
      of_target(4, std::string{9, 6, 9, 6, 9, 6, 0, 5, 0, 2, 1, 9, 6, 0, 4, 30, 7}),
      of_target(3, bytes_of(hello) + '\0'), of_target(3, bytes_of(hello) + '\1' + std::string(48, 'a'))};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  Input in(data, bytes);
  kTargets[in.below(std::size(kTargets))](in);
  return 0;
}
