// How a rank reaches the root: all candidate addresses are tried with a head start for the better ones, until one of
// them connects *and* authenticates. A slow or unreachable address costs a quarter of a second, not a TCP timeout.
#pragma once

#include <vector>

#include "base/handshake.h"
#include "base/socket.h"
#include "group/bootstrap.h"

namespace tutti {

// Does `address` belong to this host (whatever TUTTI_SOCKET_IFNAME says)?
bool is_local_address(const Address& address);

// In the order in which they are tried. Loopback comes first if the root seems to run on this host; a link-local
// address is tried through every interface, because the root's interface number means nothing here.
std::vector<Address> root_candidates(const UniqueIdParts& parts);

// Adds what to look at if `text` says that somebody's secret is not the group's.
std::string with_secret_remedy(std::string text);

// Retries until the deadline. kInvalidUsage when the last thing heard was a refusal by whoever listens there (a wrong
// secret, another version), else kTimeout; the message says what became of every address.
// If it takes long that is logged once: after kQuietSeconds, or when *tell_at has passed.
inline constexpr double kQuietSeconds = 3;
Result<RootConnection> connect_to_root(const UniqueIdParts& parts, const Key& key, int rank, Deadline deadline,
                                       Deadline* tell_at = nullptr);

// Asks one id's root after another's whether it answers, for who looks for a newer id if it does not. Each time for
// twice as long, or until the deadline if that is not much later: a root may be busy, or only the last of its addresses
// may lead to it.
class RootSearch {
 public:
  RootSearch(int rank, Deadline deadline) : rank_(rank), deadline_(deadline) {}
  Result<void> ask(const UniqueId& id);

 private:
  const int rank_;
  const Deadline deadline_;
  double patience_seconds_ = 1;
  Deadline tell_at_ = Deadline::after_seconds(kQuietSeconds);
};

}  // namespace tutti
