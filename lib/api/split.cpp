// New communicators out of the ranks of an old one.
#include <algorithm>
#include <array>
#include <vector>

#include "api/creation.h"
#include "api/group.h"

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
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return choices[static_cast<size_t>(a)].key < choices[static_cast<size_t>(b)].key;
  });
  return members;
}

template <class T>
Result<std::vector<T>> gather_all(const Use& comm, uint64_t ticket, const T& mine) {
  std::vector<T> all(static_cast<size_t>(comm->n_ranks()));
  TUTTI_TRY(comm->run(ticket, {Collective::kAllGather, &mine, all.data(), sizeof mine, DataType::kInt8}));
  return all;
}

// The new group meets through an id that its first member makes, its leader; all zero: the leader could not.
Result<std::unique_ptr<Communicator>> meet(const Use& comm, const std::vector<int>& members, const UniqueId& id,
                                           const CommOptions& options, const Deadline& deadline) {
  if (id.bytes[0] == 0)
    return Error{Code::kRemoteError,
                 format("rank %d could not start the new group: its own error says why", members[0]), members[0]};
  const auto me = std::find(members.begin(), members.end(), comm->rank()) - members.begin();
  return Communicator::create(id, static_cast<int>(me), static_cast<int>(members.size()), options, deadline);
}

// Both turns are taken in any case: what is called on `comm` later waits for them.
Result<std::unique_ptr<Communicator>> split(const Use& comm, const std::array<uint64_t, 2>& tickets, SplitChoice mine,
                                            const CommOptions& options, const Deadline& deadline) {
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
  return meet(comm, members, ids.value()[static_cast<size_t>(members[0])], options, deadline);
}

Result<void> comm_split(tuttiComm_t comm, int color, int key, tuttiComm_t* newcomm, const tuttiConfig_t* config) {
  if (newcomm == nullptr) return invalid_argument("newcomm is NULL");
  *newcomm = nullptr;
  if (color < TUTTI_SPLIT_NOCOLOR)
    return invalid_argument(format("color=%d is neither >= 0 nor TUTTI_SPLIT_NOCOLOR", color));
  const auto use = std::make_shared<Use>(comm);
  if (!*use) return not_a_comm(comm);
  TUTTI_TRY_ASSIGN(const Config read, read_config(config));
  const auto tickets = std::make_shared<std::array<uint64_t, 2>>();
  return create(
      color == TUTTI_SPLIT_NOCOLOR ? nullptr : newcomm, read,
      [=, options = read.options](const Deadline& deadline) {
        return split(*use, *tickets, {color, key}, options, deadline);
      },
      [=] {
        for (uint64_t& ticket : *tickets) ticket = (*use)->take_ticket();
      });
}

}  // namespace

extern "C" {

tuttiResult_t tuttiCommSplit(tuttiComm_t comm, int color, int key, tuttiComm_t* newcomm, const tuttiConfig_t* config) {
  return in_group([&] { return comm_split(comm, color, key, newcomm, config); });
}

}  // extern "C"
