// Starts threads, with a Result like everything else that may fail; and objects of which each thread has its own.
#pragma once

#include <signal.h>

#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/result.h"

namespace tutti {

// While this exists, threads begin without the program's signals: its handlers, and sigwait, are for its own threads.
// Handlers of crashes, which a thread causes itself, and profilers get theirs.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t held;
    sigfillset(&held);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF}) sigdelset(&held, own);
    pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  ~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_;
};

// `which` names the thread in the error if it cannot be started: "a stream's thread".
template <class Body>
Result<std::thread> start_thread(const char* which, Body&& body) {
  const SignalsHeld held;
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::bad_alloc&) {
    return caught();
  } catch (const std::system_error& e) {
    return system_error(format("starting %s (see ulimit -u)", which), e.code().value());
  }
}

// This thread's T, destroyed with the thread; a call after that gets one that is never destroyed. The main thread's are
// destroyed before static objects, whose destructors may still call the library, to leave their groups, say.
template <class T>
T& own_of_thread() {
  static constinit thread_local bool has_ended = false;
  struct Own : T {
    ~Own() { has_ended = true; }
  };
  static thread_local Own own;
  if (!has_ended) return own;
  static thread_local T* const late = new T;
  return *late;
}

}  // namespace tutti
