// New communicators from ranks of an old one (split, create group), and with additional ranks (grow).
#include <algorithm>
#include <iterator>
#include <numeric>

#include "api/checks.h"
#include "api/creation.h"
#include "api/group.h"
#include "base/sort.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

// What each rank contributes first; then the leader of each new group contributes the group's id.
struct SplitChoice {
  int32_t color, key;
};

// The ranks of `comm` that chose `color`, in the order of the new group.
std::vector<int> members_of(const std::vector<SplitChoice>& choices, int color) {
  std::vector<int> members;
  for (size_t r = 0; r < choices.size(); r++)
    if (choices[r].color == color) members.push_back(static_cast<int>(r));
  sort_stably(members,
              [&](int a, int b) { return choices[static_cast<size_t>(a)].key < choices[static_cast<size_t>(b)].key; });
  return members;
}

Operation gathering(RedOp purpose, size_t bytes, const void* mine = nullptr, void* all = nullptr) {
  Operation operation{Collective::kAllGather, mine, all, bytes, DataType::kInt8, purpose};
  operation.caller = caller_or_place(nullptr);
  return operation;
}

template <class T>
Result<std::vector<T>> gather_all(const Use& comm, uint64_t ticket, const T& mine, RedOp purpose) {
  std::vector<T> all(static_cast<size_t>(comm->n_ranks()));
  TUTTI_TRY(comm->run(ticket, gathering(purpose, sizeof mine, &mine, all.data())));
  return all;
}

// Before that call's ticket is taken.
void announce_gathering(const Use& comm, size_t bytes, RedOp purpose) {
  announce(*comm.operator->(), gathering(purpose, bytes));
}

// Joins the new group as its rank `me`. A communicator that was aborted before is told to the others, who would wait.
Result<std::unique_ptr<Communicator>> join(const Source& from, const UniqueId& id, int me, int n_ranks,
                                           const Deadline& deadline, const std::vector<int>& members) {
  const CommOptions& options = from.config.options;
  const auto meet = [&](const Deadline& until) -> Result<std::unique_ptr<Communicator>> {
    if (!until.passed()) return Communicator::create(id, me, n_ranks, options, until);
    const Error aborted{Code::kRemoteError, format("tuttiCommAbort was called on rank %d of the new group", me), me};
    return report_cannot_join(id, me, n_ranks, options, Deadline::never(), aborted);
  };
  return from.make(deadline, meet, members);
}

// What the leader sends in place of an id that it could not make: a zero byte, and why.
UniqueId no_id(const Error& why) {
  UniqueId id{};
  const std::string fits = why.message.substr(0, sizeof id.bytes - 2);
  std::copy(fits.begin(), fits.end(), id.bytes + 1);
  return id;
}

// The new group meets through the id that its leader made.
Result<std::unique_ptr<Communicator>> meet(const Source& from, const std::vector<int>& members, int leader,
                                           const UniqueId& id, const Deadline& deadline) {
  const Use& comm = from.comm;
  if (id.bytes[0] == 0)
    return Error{
        Code::kRemoteError,
        format("rank %d could not start the new group: %s", leader, reinterpret_cast<const char*>(id.bytes + 1)),
        leader};
  const auto me = std::find(members.begin(), members.end(), comm->rank()) - members.begin();
  auto made = join(from, id, static_cast<int>(me), static_cast<int>(members.size()), deadline, members);
  if (!made) TUTTI_TRY(made.error().code == Code::kRemoteError ? comm->monitor().failure_soon() : comm->async_error());
  return made;
}

// Until the first rank joins, which sets a new limit. Before that all ranks of `comm` are told the id, for which they
// may take as long as for any operation; if that fails, `is_over` ends the root.
Deadline limit_of_root(const Source& from, const std::shared_ptr<std::atomic<bool>>& is_over) {
  const double seconds = from.config.options.init_timeout_seconds + from.comm->membership().options.op_timeout_seconds;
  return Deadline::after_seconds(seconds).or_when([is_over] { return is_over->load(); });
}

// Takes both turns even after an error: later calls on `comm` wait for these tickets.
Result<std::unique_ptr<Communicator>> split(const Source& from, SplitChoice mine, const Deadline& deadline) {
  const int64_t called_ns = now_ns();
  const auto choices = gather_all(from.comm, from.tickets[0], mine, kGathersForSplit);
  const bool joins = choices && mine.color != TUTTI_SPLIT_NOCOLOR;
  const auto members = joins ? members_of(choices.value(), mine.color) : std::vector<int>();
  Result<UniqueId> made = UniqueId{};
  const auto is_over = std::make_shared<std::atomic<bool>>(false);
  if (joins && members[0] == from.comm->rank()) made = start_root(limit_of_root(from, is_over));
  const UniqueId mine_made = made ? made.value() : no_id(made.error());
  const auto ids = contained([&] { return gather_all(from.comm, from.tickets[1], mine_made, kGathersForSplit); });
  *is_over = !ids;
  if (!choices) return choices.error();
  if (!ids) return ids.error();
  if (!made) return made.error();
  if (!joins) return std::unique_ptr<Communicator>();
  // The limit is for the meeting; waiting for this rank's turn or for late ranks does not count.
  return meet(from, members, members[0], ids.value()[static_cast<size_t>(members[0])],
              deadline.extended_since(called_ns));
}

Result<void> comm_split(tuttiComm_t comm, int color, int key, tuttiComm_t* newcomm, const tuttiConfig_t* config) {
  if (newcomm == nullptr) return invalid_argument("newcomm is NULL");
  *newcomm = nullptr;
  if (color < TUTTI_SPLIT_NOCOLOR)
    return invalid_argument(format("color=%d: give 0 or more, or TUTTI_SPLIT_NOCOLOR", color));
  TUTTI_TRY_ASSIGN(const auto from, source_of(comm, config, 2));
  return create_from(
      from, color == TUTTI_SPLIT_NOCOLOR ? nullptr : newcomm,
      [=](const Deadline& deadline) {
        return split(*from, {color, key}, deadline);
      },
      [=] { announce_gathering(from->comm, sizeof(SplitChoice), kGathersForSplit); });
}

// What the leader of a listed group (its lowest rank) sends to the others: the id, and the list, so that they can check
// that theirs is the same.
struct Invitation {
  UniqueId id;
  int32_t n_ranks;
  int32_t first_ranks[16];
  uint64_t hash;  // of the whole list
};

Invitation invitation_of(const std::vector<int>& members) {
  Invitation made{};
  made.n_ranks = static_cast<int32_t>(members.size());
  made.hash = 14695981039346656037u;  // FNV-1a, one rank at a time
  for (const int rank : members) made.hash = (made.hash ^ static_cast<uint32_t>(rank)) * 1099511628211u;
  std::copy_n(members.begin(), std::min(members.size(), std::size(made.first_ranks)), made.first_ranks);
  return made;
}

std::string list_of(const Invitation& i) {
  const int shown = std::clamp(i.n_ranks, 0, static_cast<int>(std::size(i.first_ranks)));
  std::string text;
  for (int r = 0; r < shown; r++) text += format("%s%d", r == 0 ? "" : ", ", i.first_ranks[r]);
  return shown == i.n_ranks ? "[" + text + "]" : format("[%s, ... (%d ranks)]", text.c_str(), i.n_ranks);
}

Result<std::unique_ptr<Communicator>> form_group(const Source& from, const std::vector<int>& members,
                                                 const Deadline& deadline) {
  const int64_t called_ns = now_ns();
  const Use& comm = from.comm;
  const int leader = *std::min_element(members.begin(), members.end());
  Invitation mine = invitation_of(members), theirs = mine;
  Result<UniqueId> made = UniqueId{};
  // In its turn, because the root's limit begins here.
  const auto notes = [&] {
    if (leader != comm->rank()) return std::vector<Message>{{false, leader, &theirs, sizeof theirs, DataType::kInt8}};
    made = start_root(from.config.deadline());
    theirs.id = mine.id = made ? made.value() : no_id(made.error());
    std::vector<Message> to_others;
    for (const int member : members)
      if (member != leader) to_others.push_back({true, member, &mine, sizeof mine, DataType::kInt8});
    return to_others;
  };
  TUTTI_TRY(
      comm->pass_notes(from.tickets[0], notes, from.config.options.init_timeout_seconds,
                       format("tuttiCommCreateGroup with ranks=%s: all of these ranks must call it, with the same list",
                              list_of(mine).c_str())));
  TUTTI_TRY(std::move(made));
  if (theirs.n_ranks == mine.n_ranks && theirs.hash == mine.hash) {
    auto met = meet(from, members, leader, theirs.id, deadline.extended_since(called_ns));  // as in split()
    // The note to a rank that has not called waits in its link, and would be taken for that of a later call.
    const bool may_be_unread = leader == comm->rank() && members.size() > 1;
    if (may_be_unread && !met && met.error().code == Code::kTimeout) comm->monitor().watch().ending().fail(met.error());
    return met;
  }
  const Error error{Code::kInvalidUsage,
                    format("tuttiCommCreateGroup: rank %d has ranks=%s, rank %d has ranks=%s: all of these ranks must "
                           "call it, with the same list",
                           leader, list_of(theirs).c_str(), comm->rank(), list_of(mine).c_str()),
                    comm->rank()};
  comm->monitor().watch().ending().fail(error);
  return error;
}

Result<void> create_group(tuttiComm_t comm, const int* ranks, int n, tuttiComm_t* newcomm,
                          const tuttiConfig_t* config) {
  if (newcomm == nullptr) return invalid_argument("newcomm is NULL");
  *newcomm = nullptr;
  if (ranks == nullptr) return invalid_argument("ranks is NULL");
  TUTTI_TRY_ASSIGN(const auto from, source_of(comm, config, 1));
  const int n_ranks = from->comm->n_ranks();
  if (n < 1 || n > n_ranks)
    return invalid_argument(format("n=%d: give 1 to %d ranks, as many as comm has", n, n_ranks));
  TUTTI_TRY_ASSIGN(const auto listed, check_ranks("ranks", ranks, n, n_ranks));
  const std::vector<int> members(ranks, ranks + n);
  const int me = from->comm->rank();
  if (!listed.contains(me))
    return invalid_argument(format("ranks=%s does not list this rank, %d: only the listed ranks may call this",
                                   list_of(invitation_of(members)).c_str(), me));
  return create_from(from, newcomm, [=](const Deadline& deadline) { return form_group(*from, members, deadline); });
}

bool is_given(const UniqueId& id) {
  return std::any_of(std::begin(id.bytes), std::end(id.bytes), [](uint8_t byte) { return byte != 0; });
}

// Distributes the id that one or more ranks of `comm` were given to all of them.
Result<UniqueId> agree_on_id(const Use& comm, uint64_t ticket, const UniqueId& mine) {
  TUTTI_TRY_ASSIGN(const auto ids, gather_all(comm, ticket, mine, kGathersForGrowth));
  const auto first = std::find_if(ids.begin(), ids.end(), is_given);
  if (first == ids.end())
    return Error{
        Code::kInvalidUsage,
        "tuttiCommGrow: no rank of comm gave uniqueId: at least one must, and all new ranks must give the same one"};
  for (auto id = first; id != ids.end(); ++id)
    if (is_given(*id) && memcmp(id->bytes, first->bytes, sizeof id->bytes) != 0)
      return Error{Code::kInvalidUsage,
                   format("tuttiCommGrow: rank %d and rank %d of comm gave different uniqueIds",
                          static_cast<int>(first - ids.begin()), static_cast<int>(id - ids.begin()))};
  return *first;
}

std::vector<int> ranks_below(int n) {
  std::vector<int> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Result<void> join_as_old(tuttiComm_t comm, int n_ranks, const UniqueId& id, int rank, tuttiComm_t* newcomm,
                         const tuttiConfig_t* config) {
  TUTTI_TRY_ASSIGN(const auto from, source_of(comm, config, 1));
  const int old_ranks = from->comm->n_ranks(), me = from->comm->rank();
  if (n_ranks < old_ranks)
    return invalid_argument(format("nRanks=%d: comm already has %d ranks, and all of them stay", n_ranks, old_ranks));
  if (rank != -1 && rank != me)
    return invalid_argument(
        format("rank=%d: ranks of comm keep their numbers: give %d, this rank's own, or -1", rank, me));
  const auto join_old = [=](const Deadline& deadline) -> Result<std::unique_ptr<Communicator>> {
    const int64_t called_ns = now_ns();
    const auto agreed = agree_on_id(from->comm, from->tickets[0], id);
    // The limit is for the meeting; waiting for the turn or for ranks that agree late does not count.
    const Deadline limit = deadline.extended_since(called_ns);
    const CommOptions& options = from->config.options;
    if (!agreed && is_given(id))
      return from->make(limit, [&](const Deadline& until) {
        return report_cannot_join(id, me, n_ranks, options, until, agreed.error());
      });
    if (!agreed) return agreed.error();
    return join(*from, agreed.value(), me, n_ranks, limit, ranks_below(old_ranks));
  };
  return create_from(from, newcomm, join_old,
                     [=] { announce_gathering(from->comm, sizeof(UniqueId), kGathersForGrowth); });
}

Result<void> join_as_new(int n_ranks, const UniqueId& id, int rank, tuttiComm_t* newcomm, const tuttiConfig_t* config) {
  if (!is_given(id)) return invalid_argument("uniqueId is NULL or all zeros: a rank without comm needs one");
  if (n_ranks < 2) return invalid_argument(format("nRanks=%d: a group with a new rank has at least 2 ranks", n_ranks));
  if (rank < 1 || rank >= n_ranks)
    return invalid_argument(format(
        "rank=%d: a new rank's number must be at least the size of comm and less than nRanks=%d", rank, n_ranks));
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

extern "C" {

tuttiResult_t tuttiCommSplit(tuttiComm_t comm, int color, int key, tuttiComm_t* newcomm, const tuttiConfig_t* config) {
  return in_group([&] { return comm_split(comm, color, key, newcomm, config); });
}

tuttiResult_t tuttiCommCreateGroup(tuttiComm_t comm, const int* ranks, int n, tuttiComm_t* newcomm,
                                   const tuttiConfig_t* config) {
  return in_group([&] { return create_group(comm, ranks, n, newcomm, config); });
}

tuttiResult_t tuttiCommGrow(tuttiComm_t comm, int nRanks, const tuttiUniqueId* uniqueId, int rank, tuttiComm_t* newcomm,
                            const tuttiConfig_t* config) {
  return in_group([&] { return grow(comm, nRanks, uniqueId, rank, newcomm, config); });
}

}  // extern "C"
