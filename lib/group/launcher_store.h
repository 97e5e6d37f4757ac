// For launchers with a key-value store: rank 0 starts a root with a random secret and publishes its id there.
#pragma once

#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "group/bootstrap.h"

namespace tutti {

// What rank 0 publishes: "id" and the bytes in hex; or "no" and the reason why there is none, in hex, so that the
// others do not wait in vain. Plain letters and digits: every store can carry them.
std::string to_published(const Result<UniqueId>& id);
Result<UniqueId> from_published(const std::string& text);

// The id of the group that `key` names, through each of the stores. Rank 0 calls start_root, the others receive.
Result<UniqueId> share_by_tcp_store(const std::string& host, uint16_t port, const std::string& key, int rank,
                                    Deadline deadline);
// Held by who speaks to a launcher through PMI or PMIx, perhaps for as long as that takes to answer: so forks do not
// wait for it, and children get a new one.
std::mutex& launcher_mutex();
Result<UniqueId> share_by_pmi(int fd, const std::string& key, int rank, Deadline deadline);
Result<UniqueId> share_by_pmix(const std::string& key, int rank, Deadline deadline);

}  // namespace tutti
