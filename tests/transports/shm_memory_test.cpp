// Which memory peers of other processes map, and for how long.
#include <sys/mman.h>

#include <fstream>

#include "base/shared_memory.h"
#include "traffic.h"
#include "transports/shm/connection.h"

using namespace tutti;
using namespace tutti::test;

namespace {

size_t mappings_of_shared_memory(const char* name = "/memfd:tutti-memory") {
  std::ifstream maps("/proc/self/maps");
  size_t n = 0;
  for (std::string line; std::getline(maps, line);) n += contains(line, name);
  return n;
}

}  // namespace

TEST_CASE("shm: memory that a process has freed is not kept by those that have read there") {
  auto here = open_endpoint(&kShmTransport, 1);
  REQUIRE(here);
  constexpr int kBlocks = 10;
  Child child(
      Child::sender(&kShmTransport, here.value().address(), Ask{1}, [](Link& out, Mailbox& mail) -> std::string {
        for (int i = 0; i < kBlocks; i++) {
          auto memory = SharedMemory::allocate(3000);
          if (!memory || !until([&] { return out.acquire() != nullptr; })) return "no memory or slot";
          if (!out.publish(memory.value(), 3000, tuttiTag{})) return "not exposed";
          if (!until([&] { return poll_once(out) && out.unsent() == 0; })) return "not read";
          SharedMemory::free(memory.value());
        }
        return mail.receive() ? "" : "no end";
      }));
  Link in;
  REQUIRE(until([&] { return take(here.value(), &in); }));
  const size_t before = mappings_of_shared_memory();
  for (int i = 0; i < kBlocks; i++) {
    tuttiMessage message{};
    REQUIRE(until([&] { return poll_once(in) && in.peek(&message); }));
    REQUIRE(in.read());
    CHECK(mappings_of_shared_memory() > before);
    CHECK(mappings_of_shared_memory() <= before + 2);  // the previous block may not have been forgotten yet
    in.release();
  }
  REQUIRE(child.mail().send("end"));
  CHECK(child.ended_well());
}

// The socket's receiver reads some 250 bytes at a time: ten notices of freed memory, and a part of the next one.
TEST_CASE("shm: after news of much freed memory each new block is found, and not another") {
  auto here = open_endpoint(&kShmTransport, 1);
  REQUIRE(here);
  static constexpr int kBlocks = 10, kNew = 3;
  Child child(Child::sender(&kShmTransport, here.value().address(), Ask{1, 0, 16, 32768},
                            [](Link& out, Mailbox& mail) -> std::string {
                              const auto expose = [&](char letter) -> void* {
                                auto memory = SharedMemory::allocate(30000);
                                if (!memory || !until([&] { return out.acquire() != nullptr; })) return nullptr;
                                memset(memory.value(), letter, 30000);
                                return out.publish(memory.value(), 30000, tuttiTag{}) ? memory.value() : nullptr;
                              };
                              std::vector<void*> blocks;
                              for (int i = 0; i < kBlocks; i++) blocks.push_back(expose('o'));
                              if (!until([&] { return poll_once(out) && out.unsent() == 0; })) return "not read";
                              if (!mail.receive()) return "not mapped";
                              for (void* const block : blocks) SharedMemory::free(block);
                              for (int i = 0; i < kNew; i++)
                                if (expose(static_cast<char>('A' + i)) == nullptr) return "not exposed";
                              return mail.send("go") && mail.receive() ? "" : "no end";
                            }));
  Link in;
  REQUIRE(until([&] { return take(here.value(), &in); }));
  const auto next = [&]() -> std::string {
    tuttiMessage message{};
    if (!until([&] { return poll_once(in) && in.peek(&message); })) return "no message";
    const auto data = in.read();
    if (!data) return data.error().message;
    const std::string bytes(static_cast<const char*>(data.value()), message.bytes);
    in.release();
    return bytes;
  };
  for (int i = 0; i < kBlocks; i++) REQUIRE(next() == std::string(30000, 'o'));
  REQUIRE(child.mail().send("mapped"));
  REQUIRE(child.mail().receive());
  for (int i = 0; i < kNew; i++) CHECK(next() == std::string(30000, static_cast<char>('A' + i)));
  REQUIRE(child.mail().send("end"));
  CHECK(child.ended_well());
}

TEST_CASE("shm: a peer that does not look for long hears of all freed memory in the end") {
  auto here = open_endpoint(&kShmTransport, 1);
  REQUIRE(here);
  static constexpr int kBlocks = 400;  // a socket holds some 280 notices
  Child child(
      Child::sender(&kShmTransport, here.value().address(), Ask{1}, [](Link& out, Mailbox& mail) -> std::string {
        std::vector<void*> blocks;
        for (int i = 0; i < kBlocks; i++) {
          auto memory = SharedMemory::allocate(3000);
          if (!memory || !until([&] { return poll_once(out) && out.acquire() != nullptr; })) return "no memory or slot";
          if (!out.publish(memory.value(), 3000, tuttiTag{})) return "not exposed";
          blocks.push_back(memory.value());
        }
        if (!mail.receive()) return "not mapped";
        for (void* const block : blocks) SharedMemory::free(block);
        for (int i = 0; i < 1000; i++) poll_once(out);
        if (!mail.send("freed")) return "no parent";
        while (poll_once(out)) usleep(100);
        return "";
      }));
  Link in;
  REQUIRE(until([&] { return take(here.value(), &in); }));
  const size_t before = mappings_of_shared_memory();
  for (int i = 0; i < kBlocks; i++) {
    tuttiMessage message{};
    REQUIRE(until([&] { return poll_once(in) && in.peek(&message); }));
    REQUIRE(in.read());
    in.release();
  }
  CHECK(mappings_of_shared_memory() == before + kBlocks);
  REQUIRE(child.mail().send("mapped"));
  REQUIRE(child.mail().receive());
  CHECK(until([&] { return poll_once(in) && mappings_of_shared_memory() == before; }));
  in = Link();
  CHECK(child.ended_well());
}

TEST_CASE("shm: memory that is registered no more is not kept mapped, also if nothing large is sent any more") {
  auto here = open_endpoint(&kShmTransport, 1);
  REQUIRE(here);
  Child child(
      Child::sender(&kShmTransport, here.value().address(), Ask{1}, [](Link& out, Mailbox& mail) -> std::string {
        Fd file(memfd_create("users-own", MFD_CLOEXEC));
        if (ftruncate(file.get(), 4096) != 0) return "no memory";
        void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
        const auto block = SharedMemory::add(memory, 4096);
        if (!block || out.acquire() == nullptr) return "not registered, or no slot";
        if (!out.publish(memory, 3000, tuttiTag{})) return "not exposed";
        if (!mail.receive()) return "not mapped";
        SharedMemory::remove(block.value()->id);
        for (int i = 0; i < 1000; i++)
          if (!poll_once(out)) return "the link failed";
        return mail.receive() ? "" : "no end";
      }));
  Link in;
  REQUIRE(until([&] { return take(here.value(), &in); }));
  tuttiMessage message{};
  REQUIRE(until([&] { return poll_once(in) && in.peek(&message); }));
  REQUIRE(in.read());
  CHECK(mappings_of_shared_memory("/memfd:users-own") == 1);
  in.release();
  REQUIRE(child.mail().send("mapped"));
  CHECK(until([&] { return !poll_once(in) || mappings_of_shared_memory("/memfd:users-own") == 0; }));
  CHECK(poll_once(in));
  REQUIRE(child.mail().send("end"));
  CHECK(child.ended_well());
}

// As by a communicator that is destroyed while another one sends the same buffer.
TEST_CASE("shm: a registration that is taken back while what it exposes is unread stays mapped until that was read") {
  auto here = open_endpoint(&kShmTransport, 1);
  REQUIRE(here);
  Child child(
      Child::sender(&kShmTransport, here.value().address(), Ask{1}, [](Link& out, Mailbox& mail) -> std::string {
        const auto poll_often = [&] {
          for (int i = 0; i < 1000; i++)
            if (!poll_once(out)) return false;
          return true;
        };
        Fd file(memfd_create("users-own", MFD_CLOEXEC));
        if (ftruncate(file.get(), 8192) != 0) return "no memory";
        void* const memory = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
        memset(memory, 'x', 8192);
        const auto block = SharedMemory::add(memory, 4096), other = SharedMemory::add(memory, 8192);
        if (!block || !other || out.acquire() == nullptr) return "not registered, or no slot";
        if (!out.publish(memory, 3000, tuttiTag{})) return "not exposed";
        SharedMemory::remove(block.value()->id);
        if (!poll_often() || out.acquire() == nullptr) return "the link failed, or has no slot";
        if (!out.publish(memory, 3001, tuttiTag{})) return "not exposed in the other block";
        if (!poll_often() || !mail.send("removed") || !mail.receive()) return "not read";
        return poll_often() && mail.send("told") && mail.receive() ? "" : "no end";
      }));
  Link in;
  REQUIRE(until([&] { return take(here.value(), &in); }));
  REQUIRE(child.mail().receive());
  for (const uint32_t bytes : {3000u, 3001u}) {
    tuttiMessage message{};
    for (int i = 0; i < 1000; i++) REQUIRE(poll_once(in));
    REQUIRE(in.peek(&message));
    REQUIRE(message.bytes == bytes);
    const auto data = in.read();
    REQUIRE(data);
    CHECK(std::string(static_cast<const char*>(data.value()), bytes) == std::string(bytes, 'x'));
    in.release();
  }
  CHECK(mappings_of_shared_memory("/memfd:users-own") == 2);
  REQUIRE(child.mail().send("read"));
  REQUIRE(child.mail().receive());
  CHECK(until([&] { return !poll_once(in) || mappings_of_shared_memory("/memfd:users-own") == 1; }));
  REQUIRE(child.mail().send("end"));
  CHECK(child.ended_well());
}

TEST_CASE("shm: memory that the peer could not be told of is not exposed") {
  auto here = open_endpoint(&kShmTransport, 1);
  REQUIRE(here);
  static constexpr uint64_t kRefused = 1, kNever = 2;
  Child child(Child::sender(&kShmTransport, here.value().address(), Ask{1}, [](Link& out, Mailbox&) -> std::string {
    const auto has_slot = [&] { return until([&] { return out.acquire() != nullptr; }); };
    bool exposed = true;
    for (int i = 0; exposed && i < 5000; i++) {
      auto memory = SharedMemory::allocate(3000);
      if (!memory || !has_slot()) return "no memory or slot";
      exposed = out.publish(memory.value(), 3000, tuttiTag{}) != 0;
      SharedMemory::free(memory.value());
    }
    if (!has_slot()) return "no slot";
    out.publish(0, tuttiTag{{exposed ? kNever : kRefused, 0, 0, 0}});
    return "";
  }));
  Link in;
  REQUIRE(until([&] { return take(here.value(), &in); }));
  // A peer that neither reads nor polls leaves the notices of all blocks in the socket, until that is full.
  tuttiMessage message{};
  REQUIRE(until([&] {
    if (!in.peek(&message)) return false;
    in.release();
    return message.tag.word[0] != 0;
  }));
  CHECK(message.tag.word[0] == kRefused);
  CHECK(child.ended_well());
}

TEST_CASE("shared memory: what cannot be shared is said") {
  char private_bytes[100];
  const auto kept = SharedMemory::add(private_bytes, sizeof private_bytes);
  REQUIRE(kept);
  CHECK_FALSE(kept.value()->fd);
  CHECK(SharedMemory::find(private_bytes, 1) == nullptr);
  CHECK(SharedMemory::find_registered(private_bytes + 99, 1) == kept.value());
  CHECK(SharedMemory::find_registered(private_bytes + 99, 2) == nullptr);
  CHECK(SharedMemory::remove(kept.value()->id));
  CHECK(SharedMemory::find_registered(private_bytes, 1) == nullptr);
  const auto unmapped = SharedMemory::add(reinterpret_cast<void*>(4096), 100);
  REQUIRE_FALSE(unmapped);
  CHECK(unmapped.error().code == Code::kInvalidArgument);
  CHECK(contains(unmapped.error().message, "not mapped"));
  auto memory = SharedMemory::allocate(10000);
  REQUIRE(memory);
  const char* const within = static_cast<char*>(memory.value()) + 100;
  const auto part = SharedMemory::add(static_cast<char*>(memory.value()) + 100, 50);
  REQUIRE(part);
  const auto too_much = SharedMemory::add(memory.value(), 1 << 20);
  REQUIRE_FALSE(too_much);
  CHECK(contains(too_much.error().message, "1048576 bytes"));
  CHECK_FALSE(SharedMemory::free(static_cast<char*>(memory.value()) + 1));
  CHECK(SharedMemory::free(memory.value()));
  CHECK(SharedMemory::find(within, 50) == nullptr);  // including what was registered in it
  CHECK_FALSE(SharedMemory::is_live(part.value()->id));
  CHECK_FALSE(SharedMemory::free(memory.value()));
  CHECK_FALSE(SharedMemory::allocate(size_t{1} << 50));
}

TEST_CASE("shared memory: others map what is registered as far as its file has pages, and are told of nothing beyond") {
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const Fd file(memfd_create("user", MFD_CLOEXEC));
  REQUIRE(ftruncate(file.get(), static_cast<off_t>(2 * page_bytes + 1000)) == 0);
  void* const mapped = mmap(nullptr, 4 * page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  REQUIRE(mapped != MAP_FAILED);
  const auto whole_pages = SharedMemory::add(mapped, 3 * page_bytes);
  REQUIRE(whole_pages);
  REQUIRE(whole_pages.value()->fd);
  shm::PeerMemory peer(false);
  peer.take_notice({shm::kFirstBlock, 0, 3 * page_bytes}, whole_pages.value()->fd, 0);
  CHECK(peer.find(shm::kFirstBlock, 0, 3 * page_bytes) != nullptr);
  CHECK(SharedMemory::remove(whole_pages.value()->id));
  const auto too_much = SharedMemory::add(mapped, 3 * page_bytes + 1);
  REQUIRE(too_much);
  CHECK(SharedMemory::find(mapped, 1) == nullptr);
  CHECK(SharedMemory::find_registered(mapped, 1) == too_much.value());
  CHECK(SharedMemory::remove(too_much.value()->id));
  munmap(mapped, 4 * page_bytes);
}
