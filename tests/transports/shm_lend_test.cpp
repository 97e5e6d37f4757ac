// Shared memory that is lent: taken back while it is read, and what can be lent at all.
#include <atomic>
#include <thread>

#include "base/shared_memory.h"
#include "traffic.h"

using namespace tutti;
using namespace tutti::test;

TEST_CASE("shm: what is recalled cannot be read any more, what is borrowed is waited for") {
  Pair p = make_pair(&kShmTransport);
  const std::string text(3000, 'x');
  REQUIRE(p.out.try_acquire() != nullptr);
  REQUIRE(p.out.lend(text.data(), static_cast<uint32_t>(text.size()), tuttiTag{}));
  tuttiMessage message{};
  REQUIRE(p.in.try_peek(&message));
  SECTION("before it was borrowed") {
    p.out.recall();
    auto data = p.in.borrow();
    REQUIRE_FALSE(data);
    CHECK(data.error().code == Code::kRemoteError);
    CHECK(contains(data.error().message, "rank 0"));
  }
  SECTION("while it is borrowed") {
    REQUIRE(static_cast<bool>(p.in.borrow()));
    std::atomic<bool> released{false}, recalled_early{false};
    std::thread reader([&] {
      usleep(20000);
      released = true;
      p.in.release();
    });
    p.out.recall();
    recalled_early = !released;
    reader.join();
    CHECK_FALSE(recalled_early);
  }
  SECTION("by a receiver that fails in the middle") {
    REQUIRE(static_cast<bool>(p.in.borrow()));
    p.in.recall();
    p.out.recall();
  }
}

TEST_CASE("shm: a message is written where it was expected, unless the receiver takes that back") {
  Pair p = make_pair(&kShmTransport);
  const std::string text(3000, 'x');
  std::string to(3000, '.');
  const auto bytes = static_cast<uint32_t>(text.size());
  const auto send = [&](bool placed) {
    void* const slot = p.out.try_acquire();
    REQUIRE(slot != nullptr);
    void* const place = p.out.place(bytes);
    REQUIRE(place == (placed ? to.data() : nullptr));
    memcpy(placed ? place : slot, text.data(), bytes);
  };
  p.in.expect_ahead(1, to.data(), bytes);
  send(false);
  p.out.publish(bytes, tuttiTag{});
  tuttiMessage message{};
  SECTION("the right one, and only with its length") {
    REQUIRE(p.out.try_acquire() != nullptr);
    CHECK(p.out.place(bytes - 1) == nullptr);
    send(true);
    CHECK(p.out.unsent() == 0);
    p.out.publish(bytes, tuttiTag{});
    REQUIRE(p.in.try_peek(&message));
    CHECK(message.data != to.data());
    p.in.release();
    REQUIRE(p.in.try_peek(&message));
    CHECK(message.data == to.data());
    CHECK(to == text);
    p.in.release();
    send(false);
  }
  SECTION("before it was written") {
    p.in.recall();
    send(false);
  }
  SECTION("while it is written") {
    send(true);
    std::atomic<bool> published{false};
    std::thread writer([&] {
      usleep(20000);
      published = true;
      p.out.publish(bytes, tuttiTag{});
    });
    p.in.recall();
    const bool early = !published;
    writer.join();
    CHECK_FALSE(early);
  }
  SECTION("by a sender that fails in the middle") {
    send(true);
    p.out.recall();
    p.in.recall();
  }
  SECTION("by a sender that gives it up") {
    send(true);
    CHECK(p.out.try_acquire() != nullptr);
    p.in.recall();
  }
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
  const auto too_much = SharedMemory::add(memory.value(), 1 << 20);
  REQUIRE_FALSE(too_much);
  CHECK(contains(too_much.error().message, "1048576 bytes"));
  CHECK_FALSE(SharedMemory::free(static_cast<char*>(memory.value()) + 1));
  CHECK(SharedMemory::free(memory.value()));
  CHECK_FALSE(SharedMemory::free(memory.value()));
  CHECK_FALSE(SharedMemory::allocate(size_t{1} << 50));
}
