// Turns at a communicator: one at a time, whichever thread is its owner. Each round has a new ticket lock, since a
// thread loses ownership only once.
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"
#include "comm/ticket_lock.h"
#include "sanitized.h"

using tutti::TicketLock;

namespace {

constexpr int kRounds = kSanitized ? 300 : 3000;
constexpr int kOwnersTurns = 200;

// What only one thread at a time may touch: ThreadSanitizer would see two at once, and so does `overlapped`.
struct Room {
  TicketLock ticket_lock;
  long turns = 0;
  std::atomic<int> inside{0};
  std::atomic<bool> overlapped{false};

  void use() {
    if (inside.fetch_add(1) != 0) overlapped = true;
    turns++;
    inside.fetch_sub(1);
  }
  bool use_alone() {
    const auto entry = ticket_lock.enter_alone();
    if (entry == TicketLock::Entry::kNone) return false;
    use();
    ticket_lock.leave_alone(entry);
    return true;
  }
  void use_in_turn() {
    const TicketLock::Turn turn(ticket_lock, ticket_lock.take_ticket());
    use();
  }
};

// A pause of `moment` steps, so that others come at different points of the owner's turn.
void let_pass(int moment) {
  for (int i = 0; i < moment; i++) std::atomic_signal_fence(std::memory_order_seq_cst);  // keeps the loop
}

}  // namespace

TEST_CASE("the first thread to use a ticket lock becomes its owner, and stays it while it is alone", "[comm]") {
  Room room;
  CHECK(room.ticket_lock.enter_alone() == TicketLock::Entry::kWithTicket);
  room.ticket_lock.leave_alone(TicketLock::Entry::kWithTicket);
  const auto entry = room.ticket_lock.enter_alone();
  if (entry == TicketLock::Entry::kWithTicket) WARN("skipped: this kernel has no membarrier, so nobody owns anything");
  room.ticket_lock.leave_alone(entry);
  room.use_in_turn();
  CHECK(room.ticket_lock.enter_alone() == entry);
  room.ticket_lock.leave_alone(entry);
  std::thread([&] { room.use_in_turn(); }).join();
  CHECK(room.ticket_lock.enter_alone() == TicketLock::Entry::kWithTicket);
  room.ticket_lock.leave_alone(TicketLock::Entry::kWithTicket);
  CHECK(room.ticket_lock.is_idle());
  room.ticket_lock.wait_until_left();  // a new communicator, which may have another owner
  auto again = TicketLock::Entry::kNone;
  std::thread([&] {
    if (room.use_alone()) again = room.ticket_lock.enter_alone();
    room.ticket_lock.leave_alone(again);
  }).join();
  CHECK(again == entry);
}

TEST_CASE("a ticket lock goes on when its numbers wrap around", "[comm]") {
  constexpr uint64_t kLast = (uint64_t{1} << 32) - 1;
  Room room{.ticket_lock = TicketLock(kLast - 1)};
  const uint64_t before = room.ticket_lock.take_ticket(), last = room.ticket_lock.take_ticket(),
                 first = room.ticket_lock.take_ticket();
  for (const uint64_t ticket : {before, last, first}) {
    CHECK_FALSE(room.ticket_lock.has_passed(ticket));
    { const TicketLock::Turn turn(room.ticket_lock, ticket); }
    CHECK(room.ticket_lock.has_passed(ticket));
  }
  CHECK(room.ticket_lock.has_passed(before));
  CHECK(room.ticket_lock.is_idle());
  CHECK(room.use_alone());
}

TEST_CASE("nobody enters alone while a ticket is out", "[comm]") {
  Room room;
  CHECK(room.use_alone());
  const uint64_t ticket = room.ticket_lock.take_ticket();
  CHECK_FALSE(room.use_alone());
  { const TicketLock::Turn turn(room.ticket_lock, ticket); }
  CHECK(room.use_alone());
}

TEST_CASE("the last user wakes who waits for a turn without being counted, as a GPU's thread does", "[comm]") {
  Room room;
  REQUIRE(room.use_alone());
  std::thread([&] { room.use_in_turn(); }).join();  // now no thread owns it
  const auto entry = room.ticket_lock.enter_alone();
  REQUIRE(entry == TicketLock::Entry::kWithTicket);
  std::atomic<bool> waits{false};
  std::thread other([&] {
    waits = true;
    room.use_in_turn();
  });
  while (!waits) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  room.ticket_lock.leave_alone(entry);
  other.join();
  CHECK(room.turns == 3);
}

TEST_CASE("turns of an owner and of those who take the ownership from it do not overlap", "[comm]") {
  for (int round = 0; round < kRounds; round++) {
    Room room;
    REQUIRE(room.use_alone());
    std::atomic<int> ready{0};
    const auto begin = [&] {
      for (ready++; ready < 3;) std::this_thread::yield();
    };
    long others = 0, alone = 0;
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
      begin();
      let_pass(round % 50 * 20);
      room.use_in_turn();
      others++;
    });
    threads.emplace_back([&] {
      begin();
      let_pass(round % 37 * 30);
      alone += room.use_alone() ? 1 : 0;
    });
    begin();
    long mine = 1;
    for (int i = 0; i < kOwnersTurns; i++) mine += room.use_alone() ? 1 : 0;
    room.use_in_turn();
    for (auto& thread : threads) thread.join();
    REQUIRE_FALSE(room.overlapped);
    REQUIRE(room.turns == mine + 1 + others + alone);
    REQUIRE(room.ticket_lock.is_idle());
  }
}

TEST_CASE("who waits until a ticket lock is left waits for its owner", "[comm]") {
  for (int round = 0; round < kRounds; round++) {
    Room room;
    REQUIRE(room.use_alone());
    std::atomic<bool> closed{false}, begun{false}, left{false};
    std::thread other([&] {
      while (!begun) std::this_thread::yield();
      let_pass(round % 50 * 20);
      closed = true;  // as a handle is cleared first
      room.ticket_lock.wait_until_left();
      left = true;
    });
    begun = true;
    bool late = false;
    for (int i = 0; i < kOwnersTurns; i++) {
      const auto entry = room.ticket_lock.enter_alone();
      if (entry == TicketLock::Entry::kNone) continue;
      // A thread that finds it open in here is waited for.
      if (!closed && left) late = true;
      const bool was_open = !closed;
      let_pass(20);
      if (was_open && left) late = true;
      if (room.ticket_lock.leave_alone(entry) && closed) room.ticket_lock.wake_who_waits_until_left();
    }
    other.join();
    REQUIRE_FALSE(late);
  }
}

namespace {

// Whether the kernel has put this thread of the process to sleep.
bool is_asleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(") ");
  return name_end != std::string::npos && line[name_end + 2] == 'S';
}

template <class Predicate>
bool comes_true(Predicate&& predicate) {
  for (int i = 0; i < 5000 && !predicate(); i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return predicate();
}

}  // namespace

// As operations on other threads wait behind those of a group, whose tickets are taken when the group ends.
TEST_CASE("who sleeps for a turn is woken when the one before ends, whoever had that", "[comm]") {
  enum Before { kTicket, kAlone, kOwner };
  const Before before = GENERATE(kTicket, kAlone, kOwner);
  auto room = std::make_shared<Room>();
  auto entry = TicketLock::Entry::kNone;
  std::optional<TicketLock::Turn> turn;
  if (before == kOwner) CHECK(room->use_alone());
  if (before == kTicket) turn.emplace(room->ticket_lock, room->ticket_lock.take_ticket());
  if (before != kTicket) entry = room->ticket_lock.enter_alone();
  auto passed = std::make_shared<std::atomic<int>>(0);
  std::array<std::atomic<pid_t>, 2> ids{};
  std::array<uint64_t, 2> tickets{};
  for (uint64_t& ticket : tickets) {
    room->ticket_lock.enter();
    ticket = room->ticket_lock.take_ticket();
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 2; i++)
    threads.emplace_back([&, i, room, passed] {
      ids[i] = gettid();
      { const TicketLock::Turn mine(room->ticket_lock, tickets[i]); }
      room->ticket_lock.leave();
      ++*passed;
    });
  for (const auto& id : ids) CHECK(comes_true([&] { return id != 0 && is_asleep(id); }));
  CHECK(*passed == 0);
  turn.reset();
  if (before != kTicket) room->ticket_lock.leave_alone(entry);
  const bool woken = comes_true([&] { return *passed == 2; });
  for (auto& thread : threads) woken ? thread.join() : thread.detach();
  REQUIRE(woken);
}
