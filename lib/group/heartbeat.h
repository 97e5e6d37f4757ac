// Is a silent host still alive? For the control connections to other hosts: when a process ends, its kernel closes the
// connections, but a host without power, or behind a cut cable, sends nothing.
//
// Acknowledgements from its kernel prove that a host is alive: a process that is stopped, or too busy to read, is not
// lost. So a few bytes are sent every half second, once the last ones were acknowledged. Without an acknowledgement TCP
// retransmits less and less often, which looks like silence where the network loses a third of all packets: so new
// connections are tried meanwhile, ten a second to each of up to two doors, and any answer counts, even a refusal.
// One that only other doors give is a reason to move the control connection there: its network has failed. If it cannot
// be moved either, again and again, the process has ended, and the network has lost the news of that.
// While this process has no descriptor, memory or port left for them, nothing is known of the host, and it is not taken
// for lost.
//
// Not thread-safe: the watching thread has one for each connection, and calls tick() every kTickMs.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/socket.h"

namespace tutti {

class Heartbeat {
 public:
  static constexpr int kTickMs = 100;

  // `fd` is the connection; `doors` are where the peer listens, the one at the connection's other end first. The others
  // are tried as well, because one of a host's several networks may fail.
  Heartbeat(int fd, std::vector<Address> doors, int64_t now_ns)
      : fd_(fd), doors_(std::move(doors)), answered_ns_(now_ns), own_answered_ns_(now_ns) {}

  // This process did not run for `ns`, which does not count as the host's silence.
  void excuse(int64_t ns) {
    answered_ns_ += ns;
    own_answered_ns_ += ns;
  }
  // True when something should be sent now.
  bool tick(int64_t now_ns);
  // How long the host has not answered.
  int64_t silent_ns(int64_t now_ns) const { return asked_ ? now_ns - answered_ns_ : 0; }
  // A door that answers while the connection's own network has not for a while: by then it has probably failed.
  std::optional<Address> way_round(int64_t now_ns) const {
    return asked_ && now_ns - own_answered_ns_ > kFailedNs ? other_ : std::nullopt;
  }
  // Whether such a door let this side in, or all refused.
  bool lets_in() const { return lets_in_; }
  // The way round has not led to the peer. True if it has not so often meanwhile, with pauses of kTickMs, that the peer
  // is gone: a firewall may refuse, too, but not for longer than a host may be silent.
  bool note_refusal(int64_t now_ns) { return way_round(now_ns) && ++refusals_ >= kManyRefusals; }

 private:
  static constexpr int64_t kFailedNs = 2'000'000'000;
  static constexpr int kManyRefusals = 30;
  void hear_doors(int64_t now_ns);
  void knock_at_doors(int64_t now_ns);
  void knock(size_t door, std::string* shortage);  // sets *shortage if resources are lacking

  int fd_;
  std::vector<Address> doors_;
  size_t next_door_ = 0;
  int64_t answered_ns_, own_answered_ns_;  // by any network, and by the connection's own
  int64_t asked_ns_ = 0;
  bool asked_ = false;                         // bytes sent, but not acknowledged yet
  std::list<std::pair<Fd, size_t>> attempts_;  // each at a door
  std::optional<Address> other_;               // the last other door that let this side in, else one that refused
  bool lets_in_ = false;
  int refusals_ = 0;
  bool lack_logged_ = false;
};

}  // namespace tutti
