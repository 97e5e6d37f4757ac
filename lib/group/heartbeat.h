// Does a host that is silent still answer? For the control connections to other hosts: of a process that ends its
// kernel tells, but a host without power, or behind a cut cable, tells nothing.
//
// What proves that a host is there is its kernel's acknowledgement: a process that is stopped, or too busy to read, is
// not lost. So a few bytes are sent every half second, once the last ones were acknowledged. Where that stays out, TCP
// asks less and less often, which a network that loses a third of all packets takes for silence: so further connections
// are opened meanwhile, ten a second, and any answer to one of them counts, a refusal as well.
//
// Not thread-safe: the thread that watches the peers has one for each connection, and calls tick() every kTickMs.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "base/fd.h"
#include "base/socket.h"

namespace tutti {

class Heartbeat {
 public:
  static constexpr int kTickMs = 100;

  // `fd` is the connection; `doors` are where the peer listens, the one at the connection's other end first. The others
  // count, too: where a host is in several networks, one of them may fail.
  Heartbeat(int fd, std::vector<Address> doors, int64_t now_ns)
      : fd_(fd), doors_(std::move(doors)), answered_ns_(now_ns) {}

  // This process did not run for so long: nobody can be blamed for that.
  void excuse(int64_t ns) { answered_ns_ += ns; }
  // True when something should be sent now.
  bool tick(int64_t now_ns);
  // How long the host has not answered.
  int64_t silent_ns(int64_t now_ns) const { return asked_ ? now_ns - answered_ns_ : 0; }

 private:
  bool hear_doors();
  void knock(const Address& door);

  int fd_;
  std::vector<Address> doors_;
  size_t next_door_ = 0;
  int64_t answered_ns_;
  int64_t asked_ns_ = 0;
  bool asked_ = false;  // and not answered yet
  std::list<Fd> attempts_;
};

}  // namespace tutti
