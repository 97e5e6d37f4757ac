// How ranks of a group that may be broken come together again.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/bytes.h"
#include "group/peers.h"

namespace tutti {

Result<UniqueId> PeerWatch::reunion(const std::vector<int>& members, uint64_t nth, Deadline deadline) const {
  ByteWriter known_to_all;
  known_to_all.put(config_.key).put(nth);
  for (const int rank : members) known_to_all.put(rank);
  const std::string bytes = known_to_all.take();
  const Key key = derive_key(bytes.data(), bytes.size());
  UniqueIdParts parts;
  std::copy_n(key.begin(), sizeof parts.secret, parts.secret);
  const std::vector<Address>& addresses = config_.contacts[static_cast<size_t>(members[0])].addresses;
  parts.addresses = without_loopback(addresses);
  if (members[0] == config_.rank) {
    Fd listener(::fcntl(listen_fd_.get(), F_DUPFD_CLOEXEC, 0));
    if (!listener) return system_error("duplicating a descriptor (see ulimit -n)", errno);
    TUTTI_TRY(serve_root(std::move(listener), parts.secret, deadline));
  }
  return pack_unique_id(parts);
}

}  // namespace tutti
