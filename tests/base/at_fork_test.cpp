// What a forked child finds.
#include "base/at_fork.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "catch.h"

using namespace tutti;

namespace {

MadeOnce<int> g_number;

}  // namespace

TEST_CASE("a child that is forked while another thread makes something has it") {
  std::atomic<bool> begun{false};
  std::thread other([&] {
    g_number.get([&] {
      begun = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return 7;
    });
  });
  while (!begun) std::this_thread::yield();
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    const int made = g_number.get([] { return 8; });
    if (write(ends[1], &made, sizeof made) == sizeof made) kill(getpid(), SIGKILL);  // no ThreadSanitizer looks at that
    _exit(1);
  }
  close(ends[1]);
  int made = 0;
  CHECK(read(ends[0], &made, sizeof made) == sizeof made);
  CHECK(made == 7);
  close(ends[0]);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  other.join();
}
