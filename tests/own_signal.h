// Whose the program's signals are.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace tutti_test {

// Whether a signal to this process comes to this thread, which blocks and awaits it, and runs in no other thread.
inline bool signal_comes_to_who_waits() {
  static std::atomic<int> handled;
  handled = 0;
  sigset_t ours, before;
  sigemptyset(&ours);
  sigaddset(&ours, SIGUSR1);
  const auto usual = signal(SIGUSR1, [](int) { handled++; });
  pthread_sigmask(SIG_BLOCK, &ours, &before);
  kill(getpid(), SIGUSR1);  // to any thread that does not block it
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const timespec at_once{};
  const bool has_come = sigtimedwait(&ours, nullptr, &at_once) == SIGUSR1;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  signal(SIGUSR1, usual);
  return has_come && handled == 0;
}

}  // namespace tutti_test
