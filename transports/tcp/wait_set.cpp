#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <cerrno>

#include "transports/tcp/tcp_link.h"

namespace tutti::tcp {

Result<WaitSet> WaitSet::create(std::vector<int> fds) {
  WaitSet set;
  set.fds_ = std::move(fds);
  if (set.fds_.size() == 1) return set;
  set.epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  set.timer_ = Fd(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!set.epoll_ || !set.timer_)
    return system_error("creating a descriptor to wait for connections (see ulimit -n)", errno);
  for (const int fd : set.fds_) {
    epoll_event none{};
    if (epoll_ctl(set.epoll_.get(), EPOLL_CTL_ADD, fd, &none) != 0) return system_error("watching a connection", errno);
  }
  epoll_event expired{};
  expired.events = EPOLLIN;
  if (epoll_ctl(set.epoll_.get(), EPOLL_CTL_ADD, set.timer_.get(), &expired) != 0)
    return system_error("watching a timer", errno);
  return set;
}

void WaitSet::watch(int fd, short events) const {
  epoll_event event{};
  event.events = (events & POLLIN ? EPOLLIN : 0u) | (events & POLLOUT ? EPOLLOUT : 0u);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);  // cannot fail for what create() added
}

// Setting a timer also takes back that it has expired.
void WaitSet::limit(int64_t pause_ns) {
  if (pause_ns == 0 && !limited_) return;
  limited_ = pause_ns != 0;
  const itimerspec once{{0, 0}, {pause_ns / 1'000'000'000, pause_ns % 1'000'000'000}};
  timerfd_settime(timer_.get(), 0, &once, nullptr);
}

Result<void> WaitSet::replace(size_t i, int fd) {
  epoll_event none{};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &none) != 0) return system_error("watching a connection", errno);
  fds_[i] = fd;
  return {};
}

void WaitSet::drop(size_t i) {
  if (epoll_) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fds_[i], nullptr);
  fds_[i] = -1;
}

}  // namespace tutti::tcp
