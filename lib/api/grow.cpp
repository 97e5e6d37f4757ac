// A new communicator of an old one's ranks and new ones.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "api/creation.h"
#include "api/group.h"
#include "base/clock.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

bool is_given(const UniqueId& id) {
  return std::any_of(std::begin(id.bytes), std::end(id.bytes), [](uint8_t byte) { return byte != 0; });
}

// The ranks of `comm` tell each other the id that some of them have.
Result<UniqueId> agree_on_id(const Use& comm, uint64_t ticket, const UniqueId& mine) {
  std::vector<UniqueId> ids(static_cast<size_t>(comm->n_ranks()));
  TUTTI_TRY(comm->run(ticket, {Collective::kAllGather, &mine, ids.data(), sizeof mine, DataType::kInt8}));
  const auto first = std::find_if(ids.begin(), ids.end(), is_given);
  if (first == ids.end())
    return Error{Code::kInvalidUsage, "tuttiCommGrow: no rank of comm gave uniqueId: one has to, and all new ranks"};
  for (auto id = first; id != ids.end(); ++id)
    if (is_given(*id) && memcmp(id->bytes, first->bytes, sizeof id->bytes) != 0)
      return Error{Code::kInvalidUsage,
                   format("tuttiCommGrow: rank %d and rank %d of comm gave different uniqueIds",
                          static_cast<int>(first - ids.begin()), static_cast<int>(id - ids.begin()))};
  return *first;
}

Result<void> join_as_old(tuttiComm_t comm, int n_ranks, const UniqueId& id, int rank, tuttiComm_t* newcomm,
                         const tuttiConfig_t* config) {
  const auto use = std::make_shared<Use>(comm);
  if (!*use) return not_a_comm(comm);
  const int old_ranks = (*use)->n_ranks(), me = (*use)->rank();
  if (n_ranks < old_ranks)
    return invalid_argument(format("nRanks=%d: comm has %d ranks already, which all stay", n_ranks, old_ranks));
  if (rank != -1 && rank != me)
    return invalid_argument(format("rank=%d: ranks of comm keep their number, %d here: give that, or -1", rank, me));
  TUTTI_TRY_ASSIGN(const Config read, read_config(config, *use));
  const auto ticket = std::make_shared<uint64_t>();
  return create(
      newcomm, read,
      [=, options = read.options](const Deadline& deadline) -> Result<std::unique_ptr<Communicator>> {
        const int64_t called_ns = now_ns();
        TUTTI_TRY_ASSIGN(const UniqueId agreed, agree_on_id(*use, *ticket, id));
        // The limit is for the meeting, not for the turn, or for who comes late to the agreement.
        return make_from(*use, deadline.but_from(called_ns), [&](const Deadline& until) {
          return Communicator::create(agreed, me, n_ranks, options, until);
        });
      },
      [=] { *ticket = (*use)->take_ticket(); }, comm);
}

Result<void> join_as_new(int n_ranks, const UniqueId& id, int rank, tuttiComm_t* newcomm, const tuttiConfig_t* config) {
  if (!is_given(id)) return invalid_argument("uniqueId is NULL, or all zero: a rank without comm needs it");
  if (n_ranks < 2) return invalid_argument(format("nRanks=%d: a group with a new rank has at least 2 ranks", n_ranks));
  if (rank < 1 || rank >= n_ranks)
    return invalid_argument(
        format("rank=%d: a new rank needs a number from the size of comm up to nRanks=%d, exclusive", rank, n_ranks));
  TUTTI_TRY_ASSIGN(const Config read, read_config(config));
  return create(newcomm, read, [=, options = read.options](const Deadline& deadline) {
    return Communicator::create(id, rank, n_ranks, options, deadline);
  });
}

Result<void> grow(tuttiComm_t comm, int n_ranks, const tuttiUniqueId* given, int rank, tuttiComm_t* newcomm,
                  const tuttiConfig_t* config) {
  if (newcomm == nullptr) return invalid_argument("newcomm is NULL");
  *newcomm = nullptr;
  const UniqueId id = given != nullptr ? to_unique_id(*given) : UniqueId{};
  return comm != nullptr ? join_as_old(comm, n_ranks, id, rank, newcomm, config)
                         : join_as_new(n_ranks, id, rank, newcomm, config);
}

}  // namespace

extern "C" tuttiResult_t tuttiCommGrow(tuttiComm_t comm, int nRanks, const tuttiUniqueId* uniqueId, int rank,
                                       tuttiComm_t* newcomm, const tuttiConfig_t* config) {
  return in_group([&] { return grow(comm, nRanks, uniqueId, rank, newcomm, config); });
}
