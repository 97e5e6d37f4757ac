#include "base/at_fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <new>
#include <vector>

namespace tutti {
namespace {

// By descriptor number. Guarded by sockets_mutex().
std::bitset<1 << 20> g_sockets;
size_t g_end = 0;  // one past the highest number ever entered

// Never destroyed: other threads may outlive main.
struct Registry {
  std::mutex mutex, sockets;
  std::vector<std::mutex*> held;
  std::vector<void (*)()> actions;
};
Registry& registry();

// Other code may take these mutexes in any order, so this never waits for one while it holds another.
void before_fork() {
  registry().mutex.lock();
  const auto& all = registry().held;
  for (size_t locked = 0; locked < all.size();) {
    if (all[locked]->try_lock()) {
      locked++;
      continue;
    }
    for (; locked > 0; locked--) all[locked - 1]->unlock();
    sched_yield();
  }
}

void after_fork_in_parent() {
  for (std::mutex* one : registry().held) one->unlock();
  registry().mutex.unlock();
}

void replace_sockets() {
  int null = -1;
  for (size_t number = 0; number < g_end; number++) {
    if (!g_sockets[number]) continue;
    g_sockets.reset(number);
    const int fd = static_cast<int>(number);
    if (null < 0) null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || ::dup3(null, fd, O_CLOEXEC) < 0) ::close(fd);
  }
  if (null >= 0) ::close(null);
}

// Unlocks the mutexes as in the parent, for ThreadSanitizer, and then constructs them again: they may have waiters that
// do not exist in the child, and this thread's number differs from that of the thread that locked them.
void after_fork_in_child() {
  replace_sockets();
  after_fork_in_parent();
  for (std::mutex* one : registry().held) new (one) std::mutex;
  new (&registry().mutex) std::mutex;
  for (void (*action)() : registry().actions) action();
}

Registry& registry() {
  static Registry* const all = [] {
    auto* fresh = new Registry;
    fresh->held = {&fresh->sockets};
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return fresh;
  }();
  return *all;
}

}  // namespace

std::mutex& sockets_mutex() {
  return registry().sockets;
}

void enter_socket(int fd) {
  const auto number = static_cast<size_t>(fd);
  if (number >= g_sockets.size()) return;
  g_sockets.set(number);
  g_end = std::max(g_end, number + 1);
}

int above_streams(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int above = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (above < 0) return fd;  // better there than nowhere
  ::close(fd);
  return above;
}

void close_descriptor(int fd) {
  const auto number = static_cast<size_t>(fd);
  std::unique_lock lock(sockets_mutex());
  if (number < g_end && g_sockets[number])
    g_sockets.reset(number);
  else
    lock.unlock();  // closing a file may take long
  ::close(fd);
}

MutexAcrossForks::MutexAcrossForks() {
  const std::lock_guard lock(registry().mutex);
  registry().held.push_back(this);
}

bool do_in_children(void (*action)()) {
  const std::lock_guard lock(registry().mutex);
  registry().actions.push_back(action);
  return true;
}

}  // namespace tutti
