// New communicators out of the ranks of an old one.
#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <vector>

#include "api/creation.h"
#include "api/group.h"
#include "base/clock.h"
#include "base/sort.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

// What each rank says about itself, and then the id of its group if it leads one.
struct SplitChoice {
  int32_t color, key;
};

// Ranks of `comm` that chose my color, in the order of the new group.
std::vector<int> members_of(const std::vector<SplitChoice>& choices, int color) {
  std::vector<int> members;
  for (size_t r = 0; r < choices.size(); r++)
    if (choices[r].color == color) members.push_back(static_cast<int>(r));
  sort_stably(members.begin(), members.end(),
              [&](int a, int b) { return choices[static_cast<size_t>(a)].key < choices[static_cast<size_t>(b)].key; });
  return members;
}

template <class T>
Result<std::vector<T>> gather_all(const Use& comm, uint64_t ticket, const T& mine) {
  std::vector<T> all(static_cast<size_t>(comm->n_ranks()));
  TUTTI_TRY(comm->run(ticket, {Collective::kAllGather, &mine, all.data(), sizeof mine, DataType::kInt8}));
  return all;
}

// The new group meets through an id that one of its members made, the leader; all zero: it could not.
Result<std::unique_ptr<Communicator>> meet(const Use& comm, const std::vector<int>& members, int leader,
                                           const UniqueId& id, const CommOptions& options, const Deadline& deadline) {
  if (id.bytes[0] == 0)
    return Error{Code::kRemoteError, format("rank %d could not start the new group: its own error says why", leader),
                 leader};
  const auto me = std::find(members.begin(), members.end(), comm->rank()) - members.begin();
  auto made = make_from(comm, deadline, [&](const Deadline& until) {
    return Communicator::create(id, static_cast<int>(me), static_cast<int>(members.size()), options, until);
  });
  if (!made) TUTTI_TRY(made.error().code == Code::kRemoteError ? comm->monitor().failure_soon() : comm->async_error());
  return made;
}

// Both turns are taken in any case: what is called on `comm` later waits for them.
Result<std::unique_ptr<Communicator>> split(const Use& comm, const std::array<uint64_t, 2>& tickets, SplitChoice mine,
                                            const CommOptions& options, const Deadline& deadline) {
  const int64_t called_ns = now_ns();
  const auto choices = gather_all(comm, tickets[0], mine);
  const bool joins = choices && mine.color != TUTTI_SPLIT_NOCOLOR;
  const auto members = joins ? members_of(choices.value(), mine.color) : std::vector<int>();
  Result<UniqueId> made = UniqueId{};
  if (joins && members[0] == comm->rank()) made = start_root(Deadline::after_seconds(options.init_timeout_seconds));
  const auto ids = gather_all(comm, tickets[1], made ? made.value() : UniqueId{});
  if (!choices) return choices.error();
  if (!ids) return ids.error();
  if (!made) return made.error();
  if (!joins) return std::unique_ptr<Communicator>();
  // The limit is for the meeting. That this rank's turn came late, or other ranks, is no fault of it.
  return meet(comm, members, members[0], ids.value()[static_cast<size_t>(members[0])], options,
              deadline.but_from(called_ns));
}

Result<void> comm_split(tuttiComm_t comm, int color, int key, tuttiComm_t* newcomm, const tuttiConfig_t* config) {
  if (newcomm == nullptr) return invalid_argument("newcomm is NULL");
  *newcomm = nullptr;
  if (color < TUTTI_SPLIT_NOCOLOR)
    return invalid_argument(format("color=%d: give 0 or more, or TUTTI_SPLIT_NOCOLOR", color));
  const auto use = std::make_shared<Use>(comm);
  if (!*use) return not_a_comm(comm);
  TUTTI_TRY_ASSIGN(const Config read, read_config(config, *use));
  const auto tickets = std::make_shared<std::array<uint64_t, 2>>();
  return create(
      color == TUTTI_SPLIT_NOCOLOR ? nullptr : newcomm, read,
      [=, options = read.options](const Deadline& deadline) {
        return split(*use, *tickets, {color, key}, options, deadline);
      },
      [=] {
        for (uint64_t& ticket : *tickets) ticket = (*use)->take_ticket();
      },
      comm);
}

// What the leader of a listed group, its lowest rank, tells the others: the id, and the list, so that they see whether
// they mean the same.
struct Invitation {
  UniqueId id;
  int32_t n_ranks;
  int32_t first_ranks[16];
  uint64_t hash;  // of all of them
};

Invitation invitation_of(const std::vector<int>& members) {
  Invitation made{};
  made.n_ranks = static_cast<int32_t>(members.size());
  made.hash = 14695981039346656037u;  // FNV-1a, a rank at a time
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

Result<std::unique_ptr<Communicator>> form_group(const Use& comm, uint64_t ticket, const std::vector<int>& members,
                                                 const CommOptions& options, const Deadline& deadline) {
  const int64_t called_ns = now_ns();
  const int leader = *std::min_element(members.begin(), members.end());
  Invitation mine = invitation_of(members), theirs = mine;
  std::vector<Message> notes;
  Result<UniqueId> made = UniqueId{};
  if (leader == comm->rank()) {
    made = start_root(Deadline::after_seconds(options.init_timeout_seconds));
    if (made) theirs.id = mine.id = made.value();
    for (const int member : members)
      if (member != leader) notes.push_back({true, member, &mine, sizeof mine, DataType::kInt8});
  } else {
    notes.push_back({false, leader, &theirs, sizeof theirs, DataType::kInt8});
  }
  TUTTI_TRY(
      comm->pass_notes(ticket, notes, options.init_timeout_seconds,
                       format("tuttiCommCreateGroup with ranks=%s: all of these ranks must call it, with the same list",
                              list_of(mine).c_str())));
  TUTTI_TRY(std::move(made));
  if (theirs.n_ranks == mine.n_ranks && theirs.hash == mine.hash)
    return meet(comm, members, leader, theirs.id, options, deadline.but_from(called_ns));  // as in split()
  const Error error{Code::kInvalidUsage,
                    format("tuttiCommCreateGroup: rank %d has ranks=%s, rank %d has ranks=%s: all of these call it, "
                           "with the same list",
                           leader, list_of(theirs).c_str(), comm->rank(), list_of(mine).c_str()),
                    comm->rank()};
  comm->monitor().watch().fail(error);
  return error;
}

Result<void> check_members(const std::vector<int>& members, int me, int n_ranks) {
  std::vector<bool> listed(static_cast<size_t>(n_ranks));
  for (size_t i = 0; i < members.size(); i++) {
    if (members[i] < 0 || members[i] >= n_ranks)
      return invalid_argument(format("ranks[%zu]=%d is not a rank of comm: [0, %d)", i, members[i], n_ranks));
    if (listed[static_cast<size_t>(members[i])])
      return invalid_argument(format("ranks[%zu]=%d is listed twice: list each rank once", i, members[i]));
    listed[static_cast<size_t>(members[i])] = true;
  }
  if (!listed[static_cast<size_t>(me)])
    return invalid_argument(format("ranks=%s does not list this rank, %d: only the listed ranks may call this",
                                   list_of(invitation_of(members)).c_str(), me));
  return {};
}

Result<void> create_group(tuttiComm_t comm, const int* ranks, int n, tuttiComm_t* newcomm,
                          const tuttiConfig_t* config) {
  if (newcomm == nullptr) return invalid_argument("newcomm is NULL");
  *newcomm = nullptr;
  if (ranks == nullptr) return invalid_argument("ranks is NULL");
  const auto use = std::make_shared<Use>(comm);
  if (!*use) return not_a_comm(comm);
  if (n < 1 || n > (*use)->n_ranks())
    return invalid_argument(format("n=%d: give 1 to %d ranks, as many as comm has", n, (*use)->n_ranks()));
  const std::vector<int> members(ranks, ranks + n);
  TUTTI_TRY(check_members(members, (*use)->rank(), (*use)->n_ranks()));
  TUTTI_TRY_ASSIGN(const Config read, read_config(config, *use));
  const auto ticket = std::make_shared<uint64_t>();
  return create(
      newcomm, read,
      [=, options = read.options](const Deadline& deadline) {
        return form_group(*use, *ticket, members, options, deadline);
      },
      [=] { *ticket = (*use)->take_ticket(); }, comm);
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

}  // extern "C"
