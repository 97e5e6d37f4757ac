// While this exists, the kernel seems to have no memory to watch another descriptor by epoll. One at a time.
#pragma once

namespace tutti::test {

class FullEpoll {
 public:
  FullEpoll();
  ~FullEpoll();
  FullEpoll(const FullEpoll&) = delete;
  FullEpoll& operator=(const FullEpoll&) = delete;
  static int refusals();  // since there was one
};

}  // namespace tutti::test
