#include <sys/epoll.h>

#include <cerrno>

#include "transports/tcp/tcp_link.h"

namespace tutti::tcp {

Result<WaitSet> WaitSet::create(std::vector<int> fds) {
  WaitSet set;
  set.fds_ = std::move(fds);
  if (set.fds_.size() == 1) return set;
  set.epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!set.epoll_) return system_error("creating a descriptor to wait for connections (see ulimit -n)", errno);
  for (const int fd : set.fds_) {
    epoll_event none{};
    if (epoll_ctl(set.epoll_.get(), EPOLL_CTL_ADD, fd, &none) != 0) return system_error("watching a connection", errno);
  }
  return set;
}

void WaitSet::watch(int fd, short events) const {
  epoll_event event{};
  event.events = (events & POLLIN ? EPOLLIN : 0u) | (events & POLLOUT ? EPOLLOUT : 0u);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);  // cannot fail for what create() added
}

}  // namespace tutti::tcp
