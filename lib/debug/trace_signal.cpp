// Traces of a process that is asked to end.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>

#include "base/at_fork.h"
#include "base/fd.h"
#include "base/thread.h"
#include "debug/trace_json.h"

namespace tutti {
namespace {

MutexAcrossForks g_install_mutex;  // while it is installed
int g_wake = -1;
pid_t g_owner = -1;
std::atomic<bool> g_waits{false};    // whether the owner's thread waits for the signal
struct sigaction g_before, g_first;  // what this handler replaced: in this process, and in the first that installed it

void on_sigterm(int) {
  const int kept = errno;
  // A forked child inherits the handler but not the thread, and once all is written there is none. Not to g_before: in
  // a child, that may be this handler, inherited from its parent, or one that calls it.
  if (getpid() != g_owner || !g_waits) {
    sigaction(SIGTERM, &g_first, nullptr);
    raise(SIGTERM);
    return;
  }
  [[maybe_unused]] const ssize_t written = ::write(g_wake, "", 1);
  errno = kept;
}

// Without memory as much as there is memory for.
void write_all(int woken) {
  char byte;
  while (::read(woken, &byte, 1) < 0 && errno == EINTR) {
  }
  for_each_recorder([](const Recorder& recorder) {
    (void)contained(
        [&]() -> Result<void> { return write_trace_file(recorder, recorder.trace_file()), Result<void>(); });
  });
  g_waits = false;
  sigaction(SIGTERM, &g_before, nullptr);
  kill(getpid(), SIGTERM);
}

Result<void> install() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_error("pipe", errno);
  Fd woken(ends[0]), wake(ends[1]);
  TUTTI_TRY_ASSIGN(std::thread thread,
                   start_thread("the thread that waits for SIGTERM", [fd = woken.get()] { write_all(fd); }));
  thread.detach();
  (void)woken.release();  // the thread reads from it until the process ends
  struct sigaction action {};
  action.sa_handler = on_sigterm;
  action.sa_flags = SA_RESTART;
  if (sigaction(SIGTERM, nullptr, &g_before) != 0) return system_error("sigaction", errno);
  if (g_owner < 0) g_first = g_before;
  g_wake = wake.release();
  g_waits = true;
  g_owner = getpid();
  if (sigaction(SIGTERM, &action, nullptr) != 0) return system_error("sigaction", errno);
  return {};
}

}  // namespace

Result<void> write_traces_on_sigterm() {
  const std::lock_guard lock(g_install_mutex);
  return g_owner == getpid() ? Result<void>() : install();
}

}  // namespace tutti
