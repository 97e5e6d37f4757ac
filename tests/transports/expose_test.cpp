// Messages that are sent or read directly from their memory: in shared memory, within a process, and over a socket.
#include <sys/mman.h>

#include "base/shared_memory.h"
#include "traffic.h"

using namespace tutti;
using namespace tutti::test;

namespace {

constexpr uint32_t kBytes = 3000;
constexpr tuttiTag kTag{{1, 2, 3, 4}};

// The bytes of the next message, wherever they are; nothing if something is wrong.
std::optional<std::string> read_message(Link& link) {
  tuttiMessage message{};
  if (!until([&] { return !poll_once(link) || link.peek(&message); }) || message.tag.word[3] != 4) return std::nullopt;
  std::string bytes(message.bytes, '\0');
  if (message.data == nullptr) {
    auto data = link.read();
    if (!data) return std::nullopt;
    message.data = data.value();
  }
  memcpy(bytes.data(), message.data, message.bytes);
  link.release();
  return bytes;
}

// Exposes the bytes, or fills the slot if the transport cannot expose.
bool give(Link& link, const std::string& bytes, const char* at, bool* exposed) {
  void* slot = nullptr;
  if (!until([&] { return !poll_once(link) || (slot = link.acquire()) != nullptr; }) || slot == nullptr) return false;
  *exposed = link.publish(at, static_cast<uint32_t>(bytes.size()), kTag);
  if (*exposed) return true;
  memcpy(slot, at, bytes.size());
  link.publish(static_cast<uint32_t>(bytes.size()), kTag);
  return true;
}

bool is_shm(const tuttiTransport* t) {
  return std::string(t->name) == "shm";
}

// Others expose only some memory.
bool exposes_all(const tuttiTransport* t) {
  return is_shm(t) || std::string(t->name) == "tcp";
}

std::string text_of(int i) {
  std::string text(kBytes, static_cast<char>('a' + i % 26));
  text[static_cast<size_t>(i) % kBytes] = '!';
  return text;
}

// Connects to the parent, whose address comes by mail; returns what went wrong.
std::string connect_to_parent(Mailbox& mail, const tuttiTransport* t, Endpoint* endpoint, Link* link) {
  const auto address = mail.receive();
  if (!address) return "no address";
  auto connected = endpoint->connect(Ask{0, 0, 4, 4096}, *address);
  if (!connected) return connected.error().message;
  *link = std::move(connected).value();
  Health health;
  until([&] { return !(health = poll_once(*link)) || health.ready; });
  return health.ready ? "" : std::string(t->name) + ": not connected: " + health.error.text;
}

// A child exposes `n` messages from memory(i), if the transport `has_to`, and waits until each has been read.
template <class Memory>
void check_exposing_child(const tuttiTransport* t, bool has_to, Memory memory) {
  constexpr int n = 100;
  Child child([&](Mailbox& mail) -> std::string {
    auto endpoint = open_endpoint(t, 1);
    if (!endpoint) return endpoint.error().message;
    Link link;
    if (std::string trouble = connect_to_parent(mail, t, &endpoint.value(), &link); !trouble.empty()) return trouble;
    for (int i = 0; i < n; i++) {
      const std::string text = text_of(i);
      char* at = memory(i);
      if (at == nullptr) return "no memory";
      memcpy(at, text.data(), text.size());
      bool exposed = false;
      if (!give(link, text, at, &exposed)) return "no slot";
      if (!exposed && has_to) return "not exposed";
      if (!until([&] { return !poll_once(link) || link.unsent() == 0; }) || link.unsent() != 0) return "never read";
    }
    mail.receive();
    return "";
  });
  auto endpoint = open_endpoint(t, 0);
  REQUIRE(endpoint);
  REQUIRE(child.mail().send(endpoint.value().address()));
  Link link;
  REQUIRE(until([&] { return take(endpoint.value(), &link); }));
  for (int i = 0; i < n; i++) {
    const auto bytes = read_message(link);
    REQUIRE(bytes);
    REQUIRE(*bytes == text_of(i));
  }
  REQUIRE(child.mail().send("bye"));
  CHECK(child.ended_well());
}

}  // namespace

TEST_CASE("exposed from the same process: nobody copies, and the exposer knows when it was read") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  Pair p = make_pair(t);
  const std::string text = text_of(3);
  bool exposed = false;
  REQUIRE(give(p.out, text, text.data(), &exposed));
  CHECK((exposed || !exposes_all(t)));
  if (is_shm(t)) CHECK(p.out.unsent() == 1);
  tuttiMessage message{};
  REQUIRE(until([&] {
    (void)poll_once(p.out);
    (void)poll_once(p.in);
    return p.in.peek(&message);
  }));
  if (is_shm(t)) {
    CHECK(message.data == nullptr);
    auto data = p.in.read();
    REQUIRE(data);
    CHECK(data.value() == text.data());
    CHECK(p.out.unsent() == 1);
  }
  p.in.release();
  CHECK(p.out.unsent() == 0);
}

TEST_CASE("exposed from another process's private memory, where the transport can") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  static char memory[kBytes + 8];
  check_exposing_child(t, exposes_all(t) && !is_shm(t), [](int i) { return memory + i % 8; });
}

TEST_CASE("exposed from another process's shared memory, which comes and goes") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  check_exposing_child(t, exposes_all(t), [](int i) -> char* {
    static void* memory = nullptr;
    if (i % 10 == 0) {
      if (memory != nullptr) SharedMemory::free(memory);
      memory = SharedMemory::allocate(5 * kBytes).value();
    }
    return static_cast<char*>(memory) + i * 117 % (4 * kBytes);
  });
}

TEST_CASE("exposed from a memfd that the user has mapped and registered, not from its beginning") {
  const tuttiTransport* t = GENERATE(from_range(transports()));
  INFO(t->name);
  check_exposing_child(t, exposes_all(t), [](int i) -> char* {
    static char* mapped = nullptr;
    constexpr size_t kMapped = 8 * 4096;
    if (mapped == nullptr) {
      const Fd fd(memfd_create("user", 0));
      if (!fd || ftruncate(fd.get(), 3 * kMapped) != 0) return nullptr;
      mapped = static_cast<char*>(mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), kMapped));
      auto id = SharedMemory::add(mapped + 100, kMapped - 100);
      if (!id || !id.value()->fd) return nullptr;
    }
    return mapped + 100 + i * 211 % (kMapped - 100 - kBytes);
  });
}
