// Groups and communicators.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "api/group.h"
#include "base/env.h"
#include "group/launcher.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

Result<void> take_int(int value, const char* name, int min, double* to) {
  if (value == TUTTI_CONFIG_UNDEF_INT) return {};
  if (value < min) return invalid_argument(format("config.%s=%d is out of range: at least %d", name, value, min));
  *to = value;
  return {};
}

Result<CommOptions> read_config(const tuttiConfig_t* config) {
  TUTTI_TRY_ASSIGN(CommOptions options, CommOptions::from_env());
  if (config == nullptr) return options;
  // The first three fields are there in every version.
  if (config->magic != TUTTI_CONFIG_MAGIC || config->size < offsetof(tuttiConfig_t, initTimeoutSeconds))
    return invalid_argument("config was not initialised: start from TUTTI_CONFIG_INITIALIZER");
  tuttiConfig_t known = TUTTI_CONFIG_INITIALIZER;
  memcpy(&known, config, std::min(config->size, sizeof known));
  TUTTI_TRY(take_int(known.initTimeoutSeconds, "initTimeoutSeconds", 1, &options.init_timeout_seconds));
  TUTTI_TRY(take_int(known.opTimeoutSeconds, "opTimeoutSeconds", 1, &options.op_timeout_seconds));
  if (known.deterministic != TUTTI_CONFIG_UNDEF_INT) {
    if (known.deterministic != 0 && known.deterministic != 1)
      return invalid_argument(format("config.deterministic=%d is not 0 or 1", known.deterministic));
    options.deterministic = known.deterministic == 1;
  }
  if (known.transports != nullptr) options.transports = known.transports;
  if (known.algo != nullptr) options.algo = known.algo;
  return options;
}

Result<void> join(tuttiComm_t* comm, int nranks, const tuttiUniqueId& id, int rank, const CommOptions& options) {
  UniqueId unique_id;
  static_assert(sizeof unique_id.bytes == sizeof id.internal);
  memcpy(unique_id.bytes, id.internal, sizeof unique_id.bytes);
  const Deadline deadline = Deadline::after_seconds(options.init_timeout_seconds);
  TUTTI_TRY_ASSIGN(auto created, Communicator::create(unique_id, rank, nranks, options, deadline));
  *comm = make_handle(std::move(created));
  return {};
}

// Ranks of one thread's group join at its end, side by side.
Result<void> init_rank(tuttiComm_t* comm, int nranks, const tuttiUniqueId& id, int rank, const tuttiConfig_t* config) {
  if (comm == nullptr) return invalid_argument("comm is NULL");
  *comm = nullptr;
  if (nranks < 1) return invalid_argument(format("nranks=%d: a group has at least 1 rank", nranks));
  if (rank < 0 || rank >= nranks)
    return invalid_argument(format("rank=%d is not in [0, %d), the range that nranks gives", rank, nranks));
  TUTTI_TRY_ASSIGN(const CommOptions options, read_config(config));
  return launch_blocking([=] { return join(comm, nranks, id, rank, options); });
}

Result<void> get_unique_id(tuttiUniqueId* id) {
  if (id == nullptr) return invalid_argument("uniqueId is NULL");
  TUTTI_TRY_ASSIGN(const CommOptions options, CommOptions::from_env());
  TUTTI_TRY_ASSIGN(const UniqueId made, start_root(Deadline::after_seconds(options.init_timeout_seconds)));
  memcpy(id->internal, made.bytes, sizeof made.bytes);
  return {};
}

Result<void> init_all(tuttiComm_t* comms, int ndev, const int* devlist) {
  if (comms == nullptr) return invalid_argument("comms is NULL");
  if (ndev < 1) return invalid_argument(format("ndev=%d: a group has at least 1 rank", ndev));
  for (int r = 0; r < ndev; r++) comms[r] = nullptr;
  if (devlist != nullptr) return invalid_argument("devlist is for CUDA devices: on host memory it must be NULL");
  tuttiUniqueId id;
  TUTTI_TRY(get_unique_id(&id));
  TUTTI_TRY_ASSIGN(const CommOptions options, read_config(nullptr));
  std::vector<std::function<Result<void>()>> ranks;
  for (int r = 0; r < ndev; r++) ranks.push_back([&, r] { return join(&comms[r], ndev, id, r, options); });
  auto result = run_at_once(std::move(ranks));
  if (result) return {};
  for (int r = 0; r < ndev; r++) {
    detach(comms[r]).reset();
    comms[r] = nullptr;
  }
  return result;
}

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
Result<std::vector<T>> gather_all(const Use& comm, const T& mine) {
  std::vector<T> all(static_cast<size_t>(comm->n_ranks()));
  TUTTI_TRY(comm->run({Collective::kAllGather, &mine, all.data(), sizeof mine, DataType::kInt8}));
  return all;
}

Result<void> split(const Use& comm, int color, int key, tuttiComm_t* newcomm, const CommOptions& options) {
  const Deadline deadline = Deadline::after_seconds(options.init_timeout_seconds);
  TUTTI_TRY_ASSIGN(const auto choices, gather_all(comm, SplitChoice{color, key}));
  const std::vector<int> members = members_of(choices, color);
  const bool joins = color != TUTTI_SPLIT_NOCOLOR;
  UniqueId id{};  // all zero: no id
  Result<UniqueId> made = id;
  if (joins && members[0] == comm->rank()) made = start_root(deadline);
  if (made) id = made.value();
  TUTTI_TRY_ASSIGN(const auto ids, gather_all(comm, id));
  if (!made) return std::move(made).error();
  if (!joins) return {};
  const auto me = std::find(members.begin(), members.end(), comm->rank()) - members.begin();
  TUTTI_TRY_ASSIGN(auto created, Communicator::create(ids[static_cast<size_t>(members[0])], static_cast<int>(me),
                                                      static_cast<int>(members.size()), options, deadline));
  *newcomm = make_handle(std::move(created));
  return {};
}

Result<void> comm_split(tuttiComm_t comm, int color, int key, tuttiComm_t* newcomm, const tuttiConfig_t* config) {
  if (newcomm == nullptr) return invalid_argument("newcomm is NULL");
  *newcomm = nullptr;
  if (color < TUTTI_SPLIT_NOCOLOR)
    return invalid_argument(format("color=%d is neither >= 0 nor TUTTI_SPLIT_NOCOLOR", color));
  const auto use = std::make_shared<Use>(comm);
  if (!*use) return not_a_comm(comm);
  TUTTI_TRY_ASSIGN(const CommOptions options, read_config(config));
  return launch_blocking([=] { return split(*use, color, key, newcomm, options); });
}

Result<void> init_from_env(tuttiComm_t* comm, const tuttiConfig_t* config) {
  if (comm == nullptr) return invalid_argument("comm is NULL");
  *comm = nullptr;
  TUTTI_TRY_ASSIGN(const CommOptions options, read_config(config));
  TUTTI_TRY_ASSIGN(const LaunchInfo info, detect_launcher());
  const Deadline deadline = Deadline::after_seconds(options.init_timeout_seconds);
  TUTTI_TRY_ASSIGN(const UniqueId id, unique_id_from_launcher(info, deadline));
  TUTTI_TRY_ASSIGN(auto created, Communicator::create(id, info.rank, info.n_ranks, options, deadline));
  *comm = make_handle(std::move(created));
  return {};
}

Result<void> write_int(tuttiComm_t comm, int* to, const char* name, int (*get)(const Communicator&)) {
  if (to == nullptr) return invalid_argument(std::string(name) + " is NULL");
  const Use use(comm);
  if (!use) return not_a_comm(comm);
  *to = get(*use.operator->());
  return {};
}

Result<void> destroy(tuttiComm_t handle, bool abort) {
  auto member = detach(handle);
  if (!member) return not_a_comm(handle);
  if (abort) member->comm->abort();
  wait_until_unused(handle);
  const auto state = abort ? Result<void>() : member->comm->async_error();
  member.reset();
  return state;
}

}  // namespace

extern "C" {

tuttiResult_t tuttiGetUniqueId(tuttiUniqueId* uniqueId) {
  return guarded([&] { return get_unique_id(uniqueId); });
}

tuttiResult_t tuttiCommInitRank(tuttiComm_t* comm, int nranks, tuttiUniqueId commId, int rank) {
  return guarded([&] { return init_rank(comm, nranks, commId, rank, nullptr); });
}

tuttiResult_t tuttiCommInitRankConfig(tuttiComm_t* comm, int nranks, tuttiUniqueId commId, int rank,
                                      const tuttiConfig_t* config) {
  return guarded([&] { return init_rank(comm, nranks, commId, rank, config); });
}

tuttiResult_t tuttiCommInitAll(tuttiComm_t* comms, int ndev, const int* devlist) {
  return guarded([&] { return init_all(comms, ndev, devlist); });
}

tuttiResult_t tuttiCommInitFromEnv(tuttiComm_t* comm, const tuttiConfig_t* config) {
  return guarded([&] { return init_from_env(comm, config); });
}

tuttiResult_t tuttiCommSplit(tuttiComm_t comm, int color, int key, tuttiComm_t* newcomm, const tuttiConfig_t* config) {
  return guarded([&] { return comm_split(comm, color, key, newcomm, config); });
}

tuttiResult_t tuttiCommCount(const tuttiComm_t comm, int* count) {
  return guarded([&] { return write_int(comm, count, "count", [](const Communicator& c) { return c.n_ranks(); }); });
}

tuttiResult_t tuttiCommUserRank(const tuttiComm_t comm, int* rank) {
  return guarded([&] { return write_int(comm, rank, "rank", [](const Communicator& c) { return c.rank(); }); });
}

tuttiResult_t tuttiCommFinalize(tuttiComm_t comm) {
  return guarded([&]() -> Result<void> {
    const auto use = std::make_shared<Use>(comm);
    if (!*use) return not_a_comm(comm);
    return launch_blocking([use] { return (*use)->finalize(); });
  });
}

tuttiResult_t tuttiCommDestroy(tuttiComm_t comm) {
  return guarded([&] { return destroy(comm, false); });
}

tuttiResult_t tuttiCommAbort(tuttiComm_t comm) {
  return guarded([&] { return destroy(comm, true); });
}

tuttiResult_t tuttiCommGetAsyncError(tuttiComm_t comm, tuttiResult_t* asyncError) {
  return guarded([&]() -> Result<void> {
    if (asyncError == nullptr) return invalid_argument("asyncError is NULL");
    const Use use(comm);
    if (!use) return not_a_comm(comm);
    const auto state = use->async_error();
    *asyncError = state ? tuttiSuccess : static_cast<tuttiResult_t>(state.error().code);
    return {};
  });
}

}  // extern "C"
