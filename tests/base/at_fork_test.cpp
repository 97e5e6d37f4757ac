// What a forked child finds.
#include "base/at_fork.h"

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
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    _exit(g_number.get([] { return 8; }));
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 7));
  other.join();
}
