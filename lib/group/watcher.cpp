#include "group/watcher.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/at_fork.h"
#include "base/clock.h"
#include "base/thread.h"

namespace tutti {
namespace {

// Made when the library is loaded, because a first use may meet another thread's fork. Never destroyed: threads may
// outlive main.
struct OfProcess {
  MutexAcrossForks mutex;
  std::weak_ptr<Watcher> watcher;
};
OfProcess& g_of_process = *new OfProcess;
[[maybe_unused]] const bool g_watcher_is_dropped = do_in_children([] { g_of_process.watcher.reset(); });

}  // namespace

bool WatchedSet::watch(int fd, uint32_t events, void* address) {
  epoll_event event{events, {.ptr = address}};
  const bool is_watched = ::epoll_ctl(epoll.get(), EPOLL_CTL_MOD, fd, &event) == 0 ||
                          ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  lacks_room |= !is_watched;
  return is_watched;
}

Result<std::shared_ptr<Watcher>> Watcher::of_process() {
  const std::lock_guard lock(g_of_process.mutex);
  if (auto watcher = g_of_process.watcher.lock()) return watcher;
  std::shared_ptr<Watcher> watcher(new Watcher);
  TUTTI_TRY(watcher->start());
  g_of_process.watcher = watcher;
  return watcher;
}

Result<void> Watcher::start() {
  watched_.epoll.reset(epoll_create1(EPOLL_CLOEXEC));
  nudge_fd_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!watched_.epoll || !nudge_fd_) return system_error("eventfd", errno);
  if (!watched_.watch(nudge_fd_.get(), EPOLLIN, nullptr)) return system_error("epoll_ctl", errno);
  TUTTI_TRY_ASSIGN(thread_, start_thread("the thread that watches the peers", [this] { run(); }));
  return {};
}

Watcher::~Watcher() {
  if (!thread_.joinable()) return;
  stops_ = true;
  (void)eventfd_write(nudge_fd_.get(), 1);
  thread_.join();
}

void Watcher::add(Client& client) {
  {
    const std::lock_guard lock(mutex_);
    clients_[&client];
  }
  nudge(client);
}

void Watcher::nudge(Client& client) {
  const std::lock_guard lock(mutex_);
  const auto found = clients_.find(&client);
  if (found == clients_.end()) return;
  found->second.is_nudged = true;
  if (!std::exchange(any_nudged_, true)) (void)eventfd_write(nudge_fd_.get(), 1);
}

void Watcher::remove(Client& client) {
  std::unique_lock lock(mutex_);
  served_.wait(lock, [&] { return serving_ != &client; });
  const auto found = clients_.find(&client);
  if (found == clients_.end()) return;
  for (const pollfd& p : found->second.fds) (void)epoll_ctl(watched_.epoll.get(), EPOLL_CTL_DEL, p.fd, nullptr);
  set_due(&client, found->second, 0);
  clients_.erase(found);
}

// All communicators rely on this thread: if it runs out of memory, it serves all clients again a little later.
void Watcher::run() {
  while (!stops_) {
    const auto served = contained([this]() -> Result<void> {
      for (Client* const client : wait()) serve(client);
      return {};
    });
    lacked_memory_ = !served;
  }
}

// The clients that may have something to do.
std::set<Watcher::Client*> Watcher::wait() {
  int limit_ms = -1;
  {
    const std::lock_guard lock(mutex_);
    constexpr int64_t kNsPerMs = 1'000'000;
    if (!due_.empty())
      limit_ms = static_cast<int>((std::max<int64_t>(0, due_.begin()->first - now_ns()) + kNsPerMs - 1) / kNsPerMs);
  }
  constexpr int kAgainMs = 10;
  if (lacked_memory_) limit_ms = kAgainMs;
  std::array<epoll_event, 64> events;
  const int n = epoll_wait(watched_.epoll.get(), events.data(), static_cast<int>(events.size()), limit_ms);
  eventfd_t nudges;
  (void)eventfd_read(nudge_fd_.get(), &nudges);
  const std::lock_guard lock(mutex_);
  std::set<Client*> ready;
  for (int i = 0; i < n; i++) ready.insert(static_cast<Client*>(events[static_cast<size_t>(i)].data.ptr));
  const int64_t now = now_ns();
  for (auto due = due_.begin(); due != due_.end() && due->first <= now; ++due) ready.insert(due->second);
  if (std::exchange(any_nudged_, false) || lacked_memory_)
    for (auto& [client, waiting] : clients_)
      if (std::exchange(waiting.is_nudged, false) || lacked_memory_) ready.insert(client);
  return ready;
}

void Watcher::serve(Client* client) {
  {
    const std::lock_guard lock(mutex_);
    if (!clients_.contains(client)) return;  // removed meanwhile, or null: the nudge's event
    serving_ = client;
  }
  const auto end = [this](Client*) {
    const std::lock_guard lock(mutex_);
    serving_ = nullptr;
    served_.notify_all();
  };
  const std::unique_ptr<Client, decltype(end)> serving(client, end);
  client->serve();
  std::vector<pollfd> fds;
  int limit_ms = client->waits_for(&fds);
  const std::lock_guard lock(mutex_);
  Waiting& waiting = clients_[client];
  constexpr int kAgainMs = 20;
  // Descriptors that are no longer listed are closed and so left epoll, and their numbers may have been reused by now.
  for (const pollfd& p : fds) watched_.watch(p.fd, static_cast<uint32_t>(p.events), client);
  waiting.fds = std::move(fds);
  if (std::exchange(watched_.lacks_room, false) && (limit_ms < 0 || limit_ms > kAgainMs)) limit_ms = kAgainMs;
  set_due(client, waiting, limit_ms < 0 ? 0 : now_ns() + int64_t{limit_ms} * 1'000'000);
}

void Watcher::set_due(Client* client, Waiting& waiting, int64_t due_ns) {
  if (waiting.due_ns != 0) due_.erase({waiting.due_ns, client});
  waiting.due_ns = due_ns;
  if (due_ns != 0) due_.emplace(due_ns, client);
}

}  // namespace tutti
