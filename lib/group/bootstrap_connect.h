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

// Retries until the deadline. kInvalidUsage when the last thing heard was a refusal by whoever listens there (a wrong
// secret, another version), else kTimeout; the message says what became of every address.
Result<RootConnection> connect_to_root(const UniqueIdParts& parts, const Key& key, int rank, Deadline deadline);

// Whether the id's root answers, or why not, for who then looks for a newer id. Tries for `patience` seconds, which it
// doubles, or until the deadline if that is not much later.
Result<void> ask_root(const UniqueId& id, int rank, Deadline deadline, double* patience);

}  // namespace tutti
