// The thread that watches for a whole process, and connections within a process, which have no socket.
#include "group/watcher.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>

#include "base/clock.h"
#include "base/local_pipe.h"
#include "catch.h"
#include "full_epoll.h"
#include "sanitized.h"

using namespace tutti;

namespace {

bool comes_true(const std::function<bool()>& what) {
  const Deadline deadline = Deadline::after_seconds(60);
  while (!what() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return what();
}

// Counts how often it is served, and reads its pipe.
struct Counter : Watcher::Client {
  Fd in, out;
  std::atomic<int> served{0}, bytes{0}, limit_ms{-1};
  std::thread::id thread;

  Counter() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) abort();  // Catch's assertions are not for threads
    in.reset(ends[0]);
    out.reset(ends[1]);
  }
  void serve() override {
    char byte;
    while (in && ::read(in.get(), &byte, 1) == 1) bytes++;
    thread = std::this_thread::get_id();
    served++;
  }
  int waits_for(std::vector<pollfd>* fds) override {
    if (in) fds->push_back({in.get(), POLLIN, 0});
    return limit_ms;
  }
};

std::shared_ptr<Watcher> watcher_of_process() {
  auto watcher = Watcher::of_process();
  REQUIRE(watcher);
  return watcher.value();
}

}  // namespace

TEST_CASE("one thread serves all clients of a process: when bytes come, by the clock, and when it is nudged") {
  const auto watcher = watcher_of_process();
  CHECK(watcher_of_process() == watcher);
  Counter a, b;
  watcher->add(a);
  watcher->add(b);
  CHECK(comes_true([&] { return a.served >= 1 && b.served >= 1; }));
  CHECK(a.thread == b.thread);
  for (int i = 1; i <= 100; i++) {
    REQUIRE(::write(a.out.get(), "x", 1) == 1);
    REQUIRE(comes_true([&] { return a.bytes == i; }));
  }
  CHECK(b.bytes == 0);
  const int before = b.served;
  b.limit_ms = 1;
  watcher->nudge(b);
  CHECK(comes_true([&] { return b.served >= before + 10; }));
  b.limit_ms = -1;
  watcher->remove(a);
  const int last = a.served;
  REQUIRE(::write(a.out.get(), "x", 1) == 1);
  watcher->nudge(a);
  const int other = b.served;
  watcher->nudge(b);
  CHECK(comes_true([&] { return b.served > other; }));
  CHECK(a.served == last);
  watcher->remove(b);
}

TEST_CASE("a watcher lets nobody go in the middle") {
  struct Slow : Watcher::Client {
    std::atomic<bool> begun{false}, may_end{false}, ended{false};
    void serve() override {
      begun = true;
      while (!may_end) std::this_thread::yield();
      ended = true;
    }
    int waits_for(std::vector<pollfd>*) override { return -1; }
  } slow;
  const auto watcher = watcher_of_process();
  watcher->add(slow);
  REQUIRE(comes_true([&] { return slow.begun.load(); }));
  std::thread releases([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    slow.may_end = true;
  });
  watcher->remove(slow);
  const bool ended = slow.ended;
  releases.join();
  CHECK(ended);
}

TEST_CASE("a watcher hears of a descriptor that has the number of one that was closed") {
  const auto watcher = watcher_of_process();
  Counter a, b;
  watcher->add(a);
  REQUIRE(comes_true([&] { return a.served >= 1; }));
  watcher->remove(a);
  const int number = a.in.get();
  a.in.reset();
  REQUIRE(dup2(b.in.get(), number) == number);
  b.in.reset(number);
  watcher->add(b);
  REQUIRE(::write(b.out.get(), "x", 1) == 1);
  CHECK(comes_true([&] { return b.bytes == 1; }));
  watcher->remove(b);
}

TEST_CASE("a descriptor for which the kernel has no memory is watched once it has some") {
  const auto watcher = watcher_of_process();
  Counter client;
  {
    const tutti::test::FullEpoll full;
    watcher->add(client);
    REQUIRE(comes_true([&] { return full.refusals() > 0; }));
  }
  REQUIRE(::write(client.out.get(), "x", 1) == 1);
  CHECK(comes_true([&] { return client.bytes == 1; }));
  watcher->remove(client);
}

TEST_CASE("clients come and go while others are served") {
  const auto watcher = watcher_of_process();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; i++) {
        Counter client;
        watcher->add(client);
        (void)!::write(client.out.get(), "x", 1);
        watcher->nudge(client);
        if (i % 2 == 0) std::this_thread::yield();
        watcher->remove(client);  // from here it is not served: its memory and its pipe are reused
      }
    });
  for (std::thread& t : threads) t.join();
  Counter last;
  watcher->add(last);
  CHECK(comes_true([&] { return last.served >= 1; }));
  watcher->remove(last);
}

TEST_CASE("who has gone keeps the watcher awake no more") {
  const auto watcher = watcher_of_process();
  {
    Counter client;
    client.limit_ms = 20;
    watcher->add(client);
    REQUIRE(comes_true([&] { return client.served >= 1; }));
    watcher->remove(client);
  }
  const auto begin = clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(clock() - begin < CLOCKS_PER_SEC / 20);  // CPU time
}

#if !defined(TUTTI_TEST_TSAN)  // its child processes cannot start threads
TEST_CASE("a child of fork makes a watcher of its own") {
  const auto watcher = watcher_of_process();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto mine = Watcher::of_process();
    if (!mine || mine.value() == watcher) _exit(1);
    Counter client;
    mine.value()->add(client);
    _exit(comes_true([&] { return client.served >= 1; }) ? 0 : 2);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif

TEST_CASE("ranks of one process talk without a socket, and know when the other end is gone") {
  int woken = 0;
  auto one = std::make_unique<LocalPipe>(7, 3, 5, [&] { woken++; });
  char bytes[8];
  CHECK((one->read(bytes, 8) == -1 && errno == EAGAIN));
  one->write("early");
  LocalPipe elsewhere(8, 5, 3, [] {});  // in another group
  CHECK(elsewhere.read(bytes, 8) == -1);
  CHECK_FALSE(one->has_met());
  int woken_too = 0;
  auto other = std::make_unique<LocalPipe>(7, 5, 3, [&] { woken_too++; });
  CHECK((one->has_met() && other->has_met()));
  CHECK(other->read(bytes, 3) == 3);
  CHECK(other->read(bytes, 8) == 2);
  CHECK(other->read(bytes, 8) == -1);
  other->write("x");
  CHECK(woken == 1);
  one->write("last");
  CHECK(woken_too == 1);
  one.reset();
  CHECK(woken_too == 2);
  CHECK(other->has_met());
  CHECK(other->read(bytes, 8) == 4);  // what was written before
  CHECK(other->read(bytes, 8) == 0);
  other->write("x");
  // The same two may get another pipe afterwards.
  LocalPipe again(7, 3, 5, [] {}), and_again(7, 5, 3, [] {});
  again.write("x");
  CHECK(and_again.read(bytes, 8) == 1);
}

TEST_CASE("who finds that the other end came and went before it talks to nobody") {
  LocalPipe(9, 0, 1, [] {}).write("x");
  LocalPipe late(9, 1, 0, [] {});
  CHECK_FALSE(late.has_met());
  char bytes[8];
  CHECK(late.read(bytes, 8) == -1);
}
