#include "base/local_pipe.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "base/at_fork.h"

namespace tutti {

namespace {
using Name = std::tuple<uint64_t, int, int>;  // group, lower rank, higher
}

struct LocalPipe::Shared {
  struct End {
    std::string received;
    Wake wake;  // none: this end does not exist yet, or no longer
    bool closed = false;
  };
  const Name name;
  std::mutex mutex;
  std::array<End, 2> ends;  // the lower rank's first
  std::shared_ptr<void> agreed;
};

namespace {

// Pipes that have one end. Never destroyed: threads may outlive main. Made when the library is loaded: the first use
// might coincide with another thread's fork.
struct Pipes {
  MutexAcrossForks mutex;
  std::map<Name, std::weak_ptr<LocalPipe::Shared>> waiting;
};
Pipes& g_pipes = *new Pipes;

}  // namespace

LocalPipe::LocalPipe(uint64_t group, int rank, int peer, Wake wake) : side_(rank < peer ? 0 : 1) {
  const Name name{group, std::min(rank, peer), std::max(rank, peer)};
  {
    const std::lock_guard lock(g_pipes.mutex);
    const auto waiting = g_pipes.waiting.extract(name);
    if (!waiting.empty()) shared_ = waiting.mapped().lock();
    if (!shared_) g_pipes.waiting[name] = shared_ = std::make_shared<Shared>(name);
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->ends[side_].wake = std::move(wake);
}

LocalPipe::~LocalPipe() {
  {
    const std::lock_guard lock(g_pipes.mutex);
    const auto waiting = g_pipes.waiting.find(shared_->name);
    if (waiting != g_pipes.waiting.end() && waiting->second.lock() == shared_) g_pipes.waiting.erase(waiting);
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->ends[side_] = {{}, {}, true};
  if (const Wake& wake = shared_->ends[1 - side_].wake) wake();
}

bool LocalPipe::has_met() const {
  const std::lock_guard lock(shared_->mutex);
  const Shared::End& other = shared_->ends[1 - side_];
  return other.wake || other.closed;
}

std::shared_ptr<void> LocalPipe::agree_on(std::shared_ptr<void> mine) {
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->agreed) shared_->agreed = std::move(mine);
  return shared_->agreed;
}

void LocalPipe::write(std::string_view bytes) {
  const std::lock_guard lock(shared_->mutex);
  Shared::End& to = shared_->ends[1 - side_];
  if (to.closed) return;
  to.received += bytes;
  if (to.wake) to.wake();
}

ssize_t LocalPipe::read(void* to, size_t most) {
  const std::lock_guard lock(shared_->mutex);
  std::string& received = shared_->ends[side_].received;
  if (received.empty() && !shared_->ends[1 - side_].closed) return errno = EAGAIN, -1;
  const size_t n = received.copy(static_cast<char*>(to), most);
  received.erase(0, n);
  return static_cast<ssize_t>(n);
}

}  // namespace tutti
