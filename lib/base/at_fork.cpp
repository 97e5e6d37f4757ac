#include "base/at_fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <new>
#include <type_traits>
#include <variant>
#include <vector>

namespace tutti {
namespace {

constexpr size_t kMostSockets = 1 << 20;
using Word = std::atomic<uint64_t>;
std::array<Word, kMostSockets / 64> g_sockets;  // a bit each

uint64_t bit_of(int fd) {
  return uint64_t{1} << (fd % 64);
}
Word* word_of(int fd) {
  return fd >= 0 && static_cast<size_t>(fd) < kMostSockets ? &g_sockets[static_cast<size_t>(fd) / 64] : nullptr;
}

using Held = std::variant<std::mutex*, std::shared_mutex*>;
void unlock(const Held& held) {
  std::visit([](auto* mutex) { mutex->unlock(); }, held);
}

// Never destroyed: other threads may outlive main.
struct Registry {
  std::mutex mutex, sockets;
  std::vector<Held> held;
  std::vector<void (*)()> actions;
};
void register_handlers();
Registry& registry() {
  static Registry* const all = [] {
    auto* fresh = new Registry;
    fresh->held = {&fresh->sockets};
    register_handlers();
    return fresh;
  }();
  return *all;
}

// Nobody knows in which order others take them, so none is waited for while another is held.
void before_fork() {
  registry().mutex.lock();
  const auto& all = registry().held;
  for (size_t locked = 0; locked < all.size();) {
    if (std::visit([](auto* mutex) { return mutex->try_lock(); }, all[locked])) {
      locked++;
      continue;
    }
    for (; locked > 0; locked--) unlock(all[locked - 1]);
    sched_yield();
  }
}

void after_fork_in_parent() {
  for (const Held& one : registry().held) unlock(one);
  registry().mutex.unlock();
}

// The numbers stay taken: objects that the child has inherited may still hold them.
void replace_sockets() {
  int null = -1;
  for (size_t i = 0; i < g_sockets.size(); i++) {
    if (g_sockets[i].load(std::memory_order_relaxed) == 0) continue;  // to write there would cost a page
    for (uint64_t bits = g_sockets[i].exchange(0, std::memory_order_relaxed); bits != 0; bits &= bits - 1) {
      const int fd = static_cast<int>(i * 64) + __builtin_ctzll(bits);
      if (null < 0) null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      if (null < 0 || ::dup3(null, fd, O_CLOEXEC) < 0) ::close(fd);
    }
  }
  if (null >= 0) ::close(null);
}

// Given back as in the parent, for ThreadSanitizer; and made anew, because threads that are not here may wait for them,
// and this one has another number than the one that has locked them.
void after_fork_in_child() {
  replace_sockets();
  after_fork_in_parent();
  for (const Held& one : registry().held)
    std::visit([](auto* mutex) { new (mutex) std::remove_pointer_t<decltype(mutex)>; }, one);
  new (&registry().mutex) std::mutex;
  for (void (*action)() : registry().actions) action();
}

void register_handlers() {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

}  // namespace

std::mutex& sockets_mutex() {
  return registry().sockets;
}

void enter_socket(int fd) {
  if (Word* const word = word_of(fd)) word->fetch_or(bit_of(fd), std::memory_order_relaxed);
}

void close_descriptor(int fd) {
  Word* const word = word_of(fd);
  if (word == nullptr || (word->load(std::memory_order_relaxed) & bit_of(fd)) == 0) {
    ::close(fd);
    return;
  }
  const std::lock_guard lock(sockets_mutex());
  word->fetch_and(~bit_of(fd), std::memory_order_relaxed);
  ::close(fd);
}

void hold_while_forking(std::mutex& mutex) {
  const std::lock_guard lock(registry().mutex);
  registry().held.push_back(&mutex);
}

void hold_while_forking(std::shared_mutex& mutex) {
  const std::lock_guard lock(registry().mutex);
  registry().held.push_back(&mutex);
}

void do_in_children(void (*action)()) {
  const std::lock_guard lock(registry().mutex);
  registry().actions.push_back(action);
}

}  // namespace tutti
