#include "group/local_pipe.h"

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
    Wake wake;  // none: it is not there yet, or no more
    bool closed = false;
  };
  const Name name;
  std::mutex mutex;
  std::array<End, 2> ends;  // the lower rank's first
};

namespace {

// Of the pipes one end of which is there. Never destroyed: threads may outlive main.
struct Halves {
  std::mutex mutex;
  std::map<Name, std::weak_ptr<void>> pipes;
};
Halves& halves() {
  static Halves* const all = [] {
    auto* fresh = new Halves;
    hold_while_forking(fresh->mutex);
    return fresh;
  }();
  return *all;
}

}  // namespace

LocalPipe::LocalPipe(uint64_t group, int rank, int peer, Wake wake) : side_(rank < peer ? 0 : 1) {
  const std::lock_guard lock(halves().mutex);
  const Name name{group, std::min(rank, peer), std::max(rank, peer)};
  std::weak_ptr<void>& known = halves().pipes[name];
  shared_ = std::static_pointer_cast<Shared>(known.lock());
  if (shared_) {
    halves().pipes.erase(name);
  } else {
    shared_ = std::make_shared<Shared>(name);
    known = shared_;
  }
  const std::lock_guard lock_pipe(shared_->mutex);
  shared_->ends[side_].wake = std::move(wake);
}

LocalPipe::~LocalPipe() {
  {
    const std::lock_guard lock(halves().mutex);
    const auto half = halves().pipes.find(shared_->name);
    if (half != halves().pipes.end() && half->second.lock() == shared_) halves().pipes.erase(half);
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->ends[side_] = {{}, {}, true};
  if (const Wake& wake = shared_->ends[1 - side_].wake) wake();
}

ssize_t LocalPipe::write(const char* data, size_t n) {
  const std::lock_guard lock(shared_->mutex);
  Shared::End& to = shared_->ends[1 - side_];
  if (to.closed) return errno = EPIPE, -1;
  to.received.append(data, n);
  if (to.wake) to.wake();
  return static_cast<ssize_t>(n);
}

ssize_t LocalPipe::read(char* data, size_t most) {
  const std::lock_guard lock(shared_->mutex);
  std::string& received = shared_->ends[side_].received;
  if (received.empty() && !shared_->ends[1 - side_].closed) return errno = EAGAIN, -1;
  const size_t n = received.copy(data, most);
  received.erase(0, n);
  return static_cast<ssize_t>(n);
}

}  // namespace tutti
