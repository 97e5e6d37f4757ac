// A new communicator of those ranks of an old one that are left.
#include <algorithm>
#include <string>
#include <vector>

#include "api/creation.h"
#include "api/group.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

Result<std::vector<int>> survivors(const Use& comm, const int* excluded, int n_excluded) {
  const int n_ranks = comm->n_ranks();
  if (n_excluded < 0 || n_excluded >= n_ranks)
    return invalid_argument(format("excludeRanksCount=%d is not in [0, %d): comm has %d ranks, and at least one stays",
                                   n_excluded, n_ranks, n_ranks));
  if (excluded == nullptr && n_excluded > 0)
    return invalid_argument(format("excludeRanksList is NULL with excludeRanksCount=%d", n_excluded));
  std::vector<bool> stays(static_cast<size_t>(n_ranks), true);
  for (int i = 0; i < n_excluded; i++) {
    const std::string text = format("excludeRanksList[%d]=%d", i, excluded[i]);
    if (excluded[i] < 0 || excluded[i] >= n_ranks)
      return invalid_argument(format("%s is not a rank of comm: [0, %d)", text.c_str(), n_ranks));
    if (excluded[i] == comm->rank()) return invalid_argument(text + " is this rank: only those that stay call this");
    if (!stays[static_cast<size_t>(excluded[i])])
      return invalid_argument(text + " is in the list before: each rank is there once");
    stays[static_cast<size_t>(excluded[i])] = false;
  }
  std::vector<int> members;
  for (int r = 0; r < n_ranks; r++)
    if (stays[static_cast<size_t>(r)]) members.push_back(r);
  return members;
}

// What goes wrong is told in the new group's ranks, and by who does not know of the old one.
Error in_old_ranks(Error error, const std::vector<int>& members) {
  constexpr size_t kMostShown = 16;
  std::string list;
  for (size_t i = 0; i < std::min(members.size(), kMostShown); i++)
    list += format("%s%d", i == 0 ? "" : ", ", members[i]);
  if (members.size() > kMostShown) list += ", ...";
  error.message += format(
      "; in tuttiCommShrink ranks of the new group are, in this order, ranks %s of the old one: all of them live and "
      "call it with the same excludeRanksList, and rank %d of the old one serves the meeting",
      list.c_str(), members[0]);
  return error;
}

Result<std::unique_ptr<Communicator>> shrink(const Use& comm, uint64_t ticket, const std::vector<int>& members,
                                             const CommOptions& options, const Deadline& deadline) {
  TUTTI_TRY_ASSIGN(const UniqueId id, comm->reunion(ticket, members, deadline));
  const auto me = std::find(members.begin(), members.end(), comm->rank()) - members.begin();
  auto made = Communicator::create(id, static_cast<int>(me), static_cast<int>(members.size()), options, deadline);
  if (!made) return in_old_ranks(std::move(made).error(), members);
  return made;
}

Result<void> comm_shrink(tuttiComm_t comm, const int* excluded, int n_excluded, tuttiComm_t* newcomm,
                         const tuttiConfig_t* config, int flags) {
  if (newcomm == nullptr) return invalid_argument("newcomm is NULL");
  *newcomm = nullptr;
  if (flags != TUTTI_SHRINK_DEFAULT && flags != TUTTI_SHRINK_ABORT)
    return invalid_argument(format("shrinkFlags=%d is neither TUTTI_SHRINK_DEFAULT nor TUTTI_SHRINK_ABORT", flags));
  const auto use = std::make_shared<Use>(comm);
  if (!*use) return not_a_comm(comm);
  TUTTI_TRY_ASSIGN(const auto members, survivors(*use, excluded, n_excluded));
  TUTTI_TRY_ASSIGN(const Config read, read_config(config, *use));
  const auto ticket = std::make_shared<uint64_t>();
  return create(
      newcomm, read,
      [=, options = read.options](const Deadline& deadline) {
        return shrink(*use, *ticket, members, options, deadline);
      },
      [=] {
        if (flags == TUTTI_SHRINK_ABORT) (*use)->abort("tuttiCommShrink with TUTTI_SHRINK_ABORT");
        *ticket = (*use)->take_ticket();
      });
}

Result<void> lost_ranks(tuttiComm_t comm, int* ranks, int* count) {
  if (ranks == nullptr) return invalid_argument("ranks is NULL");
  if (count == nullptr) return invalid_argument("count is NULL");
  const Use use(comm);
  if (!use) return not_a_comm(comm);
  const std::vector<int> lost = use->lost();
  std::copy(lost.begin(), lost.end(), ranks);
  *count = static_cast<int>(lost.size());
  return {};
}

}  // namespace

extern "C" {

tuttiResult_t tuttiCommLostRanks(const tuttiComm_t comm, int* ranks, int* count) {
  return guarded([&] { return lost_ranks(comm, ranks, count); });
}

tuttiResult_t tuttiCommShrink(tuttiComm_t comm, int* excludeRanksList, int excludeRanksCount, tuttiComm_t* newcomm,
                              const tuttiConfig_t* config, int shrinkFlags) {
  return in_group([&] { return comm_shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags); });
}

}  // extern "C"
