// Creation, queries and the end of communicators.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "api/creation.h"
#include "api/group.h"
#include "group/launcher.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

// Within a group of calls, a thread's ranks join at its end, concurrently.
Result<void> init_rank(tuttiComm_t* comm, int nranks, const tuttiUniqueId* ids, int n_ids, int rank,
                       const tuttiConfig_t* config) {
  if (comm == nullptr) return invalid_argument("comm is NULL");
  *comm = nullptr;
  if (n_ids < 1) return invalid_argument(format("nId=%d: give at least 1 id", n_ids));
  if (ids == nullptr) return invalid_argument("commIds is NULL");
  if (nranks < 1 || nranks > kMaxRanks)  // before anything of that size is allocated
    return invalid_argument(format("nranks=%d: a group has at least 1 rank and at most %d", nranks, kMaxRanks));
  if (rank < 0 || rank >= nranks)
    return invalid_argument(format("rank=%d is not in [0, %d), the range that nranks gives", rank, nranks));
  TUTTI_TRY_ASSIGN(const Config read, read_config(config));
  for (int i = 1; i < n_ids; i++)  // the first id is checked when it is joined
    if (auto known = unpack_unique_id(to_unique_id(ids[i])); !known)
      return invalid_argument(format("commIds[%d]: %s", i, known.error().message.c_str()));
  const auto share = static_cast<int>(int64_t{rank} * n_ids / nranks);
  const UniqueId first = to_unique_id(ids[0]), other = to_unique_id(ids[share]);
  return create(comm, read, [=, options = read.options](const Deadline& deadline) {
    return Communicator::create(first, rank, nranks, options, deadline, share > 0 ? &other : nullptr);
  });
}

Result<void> get_unique_id(tuttiUniqueId* id) {
  if (id == nullptr) return invalid_argument("uniqueId is NULL");
  TUTTI_TRY_ASSIGN(const Config read, read_config(nullptr));
  // Between making an id and using it a program may load its model.
  const double limit = read.options.init_timeout_seconds;
  TUTTI_TRY_ASSIGN(const UniqueId made,
                   start_root(Deadline::after_seconds(std::max(3600.0, limit)), 0, nullptr, limit));
  memcpy(id->internal, made.bytes, sizeof made.bytes);
  return {};
}

Result<void> init_all(tuttiComm_t* comms, int ndev, const int* devlist) {
  if (comms == nullptr) return invalid_argument("comms is NULL");
  if (ndev < 1) return invalid_argument(format("ndev=%d: a group has at least 1 rank", ndev));
  for (int r = 0; r < ndev; r++) comms[r] = nullptr;
  TUTTI_TRY_ASSIGN(const Config read, read_config(nullptr));
  std::vector<CommOptions> options(static_cast<size_t>(ndev), read.options);
  for (int r = 0; devlist != nullptr && r < ndev; r++)
    TUTTI_TRY(take_cuda_device(devlist[r], format("devlist[%d]", r), &options[static_cast<size_t>(r)].cuda_device));
  const Deadline deadline = read.deadline();
  TUTTI_TRY_ASSIGN(const UniqueId id, start_root(deadline));
  std::vector<std::unique_ptr<Communicator>> made(static_cast<size_t>(ndev));
  std::vector<std::function<Result<void>()>> ranks;
  for (int r = 0; r < ndev; r++)
    ranks.push_back([&, r]() -> Result<void> {
      TUTTI_TRY_ASSIGN(made[static_cast<size_t>(r)],
                       Communicator::create(id, r, ndev, options[static_cast<size_t>(r)], deadline));
      return {};
    });
  TUTTI_TRY(run_at_once(std::move(ranks)));
  for (size_t r = 0; r < made.size(); r++) {
    auto handled = contained([&]() -> Result<void> {
      comms[r] = make_handle(std::make_shared<Member>(std::move(made[r])));
      return {};
    });
    if (handled) continue;
    for (size_t i = 0; i < r; i++) (void)tuttiCommAbort(std::exchange(comms[i], nullptr));
    return handled;
  }
  return {};
}

// A failed call's number cannot be used again: while one rank's time is up another one's creation may have succeeded.
Error in_call(int n, Error error) {
  error.message +=
      format(" (in call %d of tuttiCommInitFromEnv in this process: ranks meet in calls of the same number)", n);
  return error;
}

Result<void> init_from_env(tuttiComm_t* comm, const tuttiConfig_t* config) {
  if (comm == nullptr) return invalid_argument("comm is NULL");
  *comm = nullptr;
  TUTTI_TRY_ASSIGN(const Config read, read_config(config));
  TUTTI_TRY_ASSIGN(LaunchInfo info, detect_launcher());
  info.encrypts = read.options.encrypt;
  // Never in the background: processes count these calls, so they must stay in order.
  const int64_t asked_ns = now_ns();
  int n = 0;
  auto id = unique_id_from_launcher(info, read.deadline(), &n);
  if (!id) return in_call(n, std::move(id).error());
  const double spent_seconds = static_cast<double>(now_ns() - asked_ns) * 1e-9;
  return create(
      comm, read, [=, options = read.options](const Deadline& deadline) -> Result<std::unique_ptr<Communicator>> {
        auto made =
            Communicator::create(id.value(), info.rank, info.n_ranks, options, deadline.plus_seconds(-spent_seconds));
        if (!made) return in_call(n, std::move(made).error());
        return made;
      });
}

Result<void> write_int(tuttiComm_t comm, int* to, const char* name, int (*get)(const Communicator&)) {
  if (to == nullptr) return invalid_argument(std::string(name) + " is NULL");
  TUTTI_TRY_ASSIGN(const Use use, use_of(comm));
  *to = get(*use.operator->());
  return {};
}

Result<void> mem_stats(tuttiComm_t comm, tuttiCommMemStats_t* stats) {
  if (stats == nullptr) return invalid_argument("stats is NULL");
  // The fields of the first version; later versions append.
  constexpr size_t kLeastBytes = offsetof(tuttiCommMemStats_t, threads) + sizeof stats->threads;
  if (stats->size < kLeastBytes)
    return invalid_argument(
        format("stats.size=%zu is too small: start from TUTTI_COMM_MEM_STATS_INITIALIZER", stats->size));
  TUTTI_TRY_ASSIGN(const Use use, use_of(comm));
  const auto held = use->holdings();
  size_t registered_bytes = 0;
  use.member().registrations.for_each([&](const auto& one) { registered_bytes += one->bytes; });
  const tuttiCommMemStats_t all = {stats->size,      held.links, held.link_bytes, held.scratch_bytes, registered_bytes,
                                   held.descriptors, 1};
  memcpy(stats, &all, std::min(stats->size, sizeof all));
  return {};
}

Result<void> destroy(tuttiComm_t handle, bool abort) {
  const auto member = detach(handle);
  if (!member) return not_a_comm(handle);
  bool ends = abort;
  auto ended = contained([&]() -> Result<void> {
    if (!ends) {
      const auto before = member->state();
      ends = !before && before.error().code == Code::kInProgress;
    }
    if (ends) member->abort();  // first, as it needs no memory: other threads are waited for below
    if (ends) end_queued(handle);
    return {};
  });
  // Whatever failed above: this thread's own calls would be waited for, too.
  auto dropped = contained([&]() -> Result<void> {
    drop_from_group(handle);
    if (ended) member->join();
    return {};
  });
  wait_until_unused(handle);  // even if memory ran out above
  TUTTI_TRY(std::move(ended));
  TUTTI_TRY(std::move(dropped));
  return ends ? Result<void>() : member->state();
}

Result<void> finalize(tuttiComm_t comm, bool alone) {
  const auto use = std::make_shared<Use>(comm);
  if (!*use) return not_a_comm(comm);
  if (use->member().blocking())
    return launch_blocking(comm, [use, alone] {
      if (!alone) announce(*use->operator->(), {Collective::kFinalize});
      return (*use)->finalize((*use)->take_ticket(), alone);
    });
  TUTTI_TRY(use->member().finalize(alone));
  return in_background("tuttiCommFinalize");
}

}  // namespace

extern "C" {

tuttiResult_t tuttiGetUniqueId(tuttiUniqueId* uniqueId) {
  return guarded([&] { return get_unique_id(uniqueId); });
}

tuttiResult_t tuttiCommInitRank(tuttiComm_t* comm, int nranks, tuttiUniqueId commId, int rank) {
  return in_group([&] { return init_rank(comm, nranks, &commId, 1, rank, nullptr); });
}

tuttiResult_t tuttiCommInitRankConfig(tuttiComm_t* comm, int nranks, tuttiUniqueId commId, int rank,
                                      const tuttiConfig_t* config) {
  return in_group([&] { return init_rank(comm, nranks, &commId, 1, rank, config); });
}

tuttiResult_t tuttiCommInitRankScalable(tuttiComm_t* newcomm, int nranks, int myrank, int nId, tuttiUniqueId* commIds,
                                        tuttiConfig_t* config) {
  return in_group([&] {
    if (newcomm == nullptr) return Result<void>(invalid_argument("newcomm is NULL"));
    return init_rank(newcomm, nranks, commIds, nId, myrank, config);
  });
}

tuttiResult_t tuttiCommInitAll(tuttiComm_t* comms, int ndev, const int* devlist) {
  return guarded([&] { return init_all(comms, ndev, devlist); });
}

tuttiResult_t tuttiCommInitFromEnv(tuttiComm_t* comm, const tuttiConfig_t* config) {
  return in_group([&] { return init_from_env(comm, config); });
}

tuttiResult_t tuttiCommCount(const tuttiComm_t comm, int* count) {
  return guarded([&] { return write_int(comm, count, "count", [](const Communicator& c) { return c.n_ranks(); }); });
}

tuttiResult_t tuttiCommUserRank(const tuttiComm_t comm, int* rank) {
  return guarded([&] { return write_int(comm, rank, "rank", [](const Communicator& c) { return c.rank(); }); });
}

tuttiResult_t tuttiCommCuDevice(const tuttiComm_t comm, int* device) {
  return guarded([&] {
    return write_int(comm, device, "device", [](const Communicator& c) { return c.membership().options.cuda_device; });
  });
}

tuttiResult_t tuttiCommMemStats(tuttiComm_t comm, tuttiCommMemStats_t* stats) {
  return guarded([&] { return mem_stats(comm, stats); });
}

tuttiResult_t tuttiCommFinalize(tuttiComm_t comm) {
  return in_group([&] { return finalize(comm, false); });
}

tuttiResult_t tuttiCommFinalizeLocal(tuttiComm_t comm) {
  return in_group([&] { return finalize(comm, true); });
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
    if (!use.is_live()) return not_a_comm(comm);
    const auto state = use.member().state();
    *asyncError = state ? tuttiSuccess : static_cast<tuttiResult_t>(state.error().code);
    return {};
  });
}

}  // extern "C"
