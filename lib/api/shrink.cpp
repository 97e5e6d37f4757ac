// A new communicator of the remaining ranks of an old one; revoking; lost ranks.
#include <algorithm>

#include "api/checks.h"
#include "api/creation.h"
#include "api/group.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

// Returns the excluded ranks in ascending order.
Result<std::vector<int>> read_excluded(const Use& comm, const int* excluded, int n_excluded) {
  const int n_ranks = comm->n_ranks();
  if (n_excluded < 0 || n_excluded >= n_ranks)
    return invalid_argument(
        format("excludeRanksCount=%d is not in [0, %d): comm has %d ranks, and at least one must stay", n_excluded,
               n_ranks, n_ranks));
  if (excluded == nullptr && n_excluded > 0)
    return invalid_argument(format("excludeRanksList is NULL with excludeRanksCount=%d", n_excluded));
  TUTTI_TRY_ASSIGN(const auto listed, check_ranks("excludeRanksList", excluded, n_excluded, n_ranks));
  if (listed.contains(comm->rank()))
    return invalid_argument(
        format("excludeRanksList has %d, this rank: only ranks that stay may call this", comm->rank()));
  return std::vector<int>(listed.begin(), listed.end());
}

Result<std::unique_ptr<Communicator>> shrink(const Source& from, const std::vector<int>& excluded,
                                             const Deadline& deadline) {
  auto made = from.make(deadline, [&](const Deadline& until) {
    return from.comm->shrink(from.tickets[0], excluded, from.config.options, until);
  });
  if (!made && !excluded.empty() && made.error().code == Code::kTimeout)
    made.error().message +=
        "; in tuttiCommShrink all ranks that stay must give the same excludeRanksList, or all must give NULL";
  return made;
}

Result<void> comm_shrink(tuttiComm_t comm, const int* excluded, int n_excluded, tuttiComm_t* newcomm,
                         const tuttiConfig_t* config, int flags) {
  if (newcomm == nullptr) return invalid_argument("newcomm is NULL");
  *newcomm = nullptr;
  if (flags != TUTTI_SHRINK_DEFAULT && flags != TUTTI_SHRINK_ABORT)
    return invalid_argument(format("shrinkFlags=%d is neither TUTTI_SHRINK_DEFAULT nor TUTTI_SHRINK_ABORT", flags));
  TUTTI_TRY_ASSIGN(const auto from, source_of(comm, config, 1));
  TUTTI_TRY_ASSIGN(const auto sorted, read_excluded(from->comm, excluded, n_excluded));
  const auto first = [=] {
    if (flags != TUTTI_SHRINK_ABORT) return;
    from->comm->abort("tuttiCommShrink with TUTTI_SHRINK_ABORT");
    end_queued(comm);
  };
  return create_from(
      from, newcomm, [=](const Deadline& deadline) { return shrink(*from, sorted, deadline); }, first);
}

Result<void> revoke(tuttiComm_t comm, int flags) {
  if (flags != 0) return invalid_argument(format("revokeFlags=%d is not 0", flags));
  TUTTI_TRY_ASSIGN(const Use use, use_of(comm));
  use->abort("tuttiCommRevoke");
  end_queued(comm);
  return {};
}

Result<void> lost_ranks(tuttiComm_t comm, int* ranks, int* count) {
  if (ranks == nullptr) return invalid_argument("ranks is NULL");
  if (count == nullptr) return invalid_argument("count is NULL");
  TUTTI_TRY_ASSIGN(const Use use, use_of(comm));
  const std::vector<int> lost = use->monitor().watch().lost();
  std::copy(lost.begin(), lost.end(), ranks);
  *count = static_cast<int>(lost.size());
  return {};
}

}  // namespace

extern "C" {

tuttiResult_t tuttiCommRevoke(tuttiComm_t comm, int revokeFlags) {
  return guarded([&] { return revoke(comm, revokeFlags); });
}

tuttiResult_t tuttiCommLostRanks(const tuttiComm_t comm, int* ranks, int* count) {
  return guarded([&] { return lost_ranks(comm, ranks, count); });
}

tuttiResult_t tuttiCommShrink(tuttiComm_t comm, int* excludeRanksList, int excludeRanksCount, tuttiComm_t* newcomm,
                              const tuttiConfig_t* config, int shrinkFlags) {
  return in_group([&] { return comm_shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags); });
}

}  // extern "C"
