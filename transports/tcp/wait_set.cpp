#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <cerrno>

#include "transports/tcp/tcp_link.h"

namespace tutti::tcp {

Result<WaitSet> WaitSet::create(const std::vector<int>& fds) {
  WaitSet set;
  for (const int fd : fds) TUTTI_TRY(set.add(fd));
  return set;
}

Result<void> WaitSet::add(int fd) {
  if (fds_.size() == 1) TUTTI_TRY(become_several());
  if (epoll_) TUTTI_TRY(enter(fd));
  fds_.push_back(fd);
  watched_.push_back(0);
  return {};
}

Result<void> WaitSet::become_several() {
  Fd epoll(epoll_create1(EPOLL_CLOEXEC)), timer(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!epoll || !timer) return system_error("creating a descriptor to wait for connections (see ulimit -n)", errno);
  epoll_event expired{};
  expired.events = EPOLLIN;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, timer.get(), &expired) != 0) return system_error("watching a timer", errno);
  epoll_ = std::move(epoll);
  timer_ = std::move(timer);
  return enter(fds_[0]);
}

Result<void> WaitSet::enter(int fd) {
  polls_since_arm_ = 0;  // it is watched, until note_poll() says otherwise
  epoll_event none{};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &none) != 0) return system_error("watching a connection", errno);
  return {};
}

static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLRDHUP == POLLRDHUP);
void WaitSet::watch(size_t i, short events) {
  const short before = std::exchange(watched_[i], events);
  if (before == events || fds_[i] < 0) return;
  epoll_event event{};
  event.events = static_cast<uint32_t>(events);
  const int how = before == kUnwatched ? EPOLL_CTL_ADD : events == kUnwatched ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  epoll_ctl(epoll_.get(), how, fds_[i], &event);
}

// Setting the timer also clears its expiry.
void WaitSet::limit(int64_t pause_ns) {
  if (pause_ns == 0 && !limited_) return;
  limited_ = pause_ns != 0;
  const itimerspec once{{0, 0}, {pause_ns / 1'000'000'000, pause_ns % 1'000'000'000}};
  timerfd_settime(timer_.get(), 0, &once, nullptr);
}

Result<void> WaitSet::replace(size_t i, int fd) {
  TUTTI_TRY(enter(fd));
  fds_[i] = fd;
  watched_[i] = 0;
  return {};
}

}  // namespace tutti::tcp
