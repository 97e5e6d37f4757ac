// The library, memory and communicators.
#include <bit>
#include <cstring>
#include <new>
#include <numeric>
#include <vector>

#include "nccl/shim.h"

using namespace tutti::nccl;  // NOLINT: this file is the boundary

// What a program's window handle points to.
struct ncclAbiWindow {
  void* registration;
  void* buffer;
};

namespace {

constexpr ncclResult_t kSuccess = tuttiSuccess;

// Converts a program's options, or NULL for none. NCCL's other options say how to use what Tutti does not have (CTAs,
// channels, NVLS) or are hints. `made` becomes NULL whatever the result.
ncclResult_t convert(const ncclConfig_t* config, int device, ncclComm_t* made, tuttiConfig_t* to) {
  if (made != nullptr) *made = nullptr;
  *to = TUTTI_CONFIG_INITIALIZER;
  to->cudaDevice = device;
  if (config == nullptr) return kSuccess;
  constexpr size_t kLeastBytes = offsetof(ncclConfig_t, blocking) + sizeof config->blocking;
  if (config->magic != NCCL_ABI_MAGIC || config->size < kLeastBytes)
    return fail_group(refused(tuttiInvalidArgument, "config was not initialised: start from NCCL_CONFIG_INITIALIZER"));
  // A default of NCCL's own: only without a config a communicator's children inherit.
  to->blocking = config->blocking == NCCL_ABI_UNDEF_INT ? 1 : config->blocking;
  return kSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return refused(tuttiInvalidArgument, "version is NULL");
  *version = NCCL_ABI_VERSION;
  return kSuccess;
}

void ncclResetDebugInit(void) {}

ncclResult_t ncclMemAlloc(void** ptr, size_t size) {
  if (ptr == nullptr || current_device() < 0) return passed(tuttiMemAlloc(ptr, size));
  return device_alloc(ptr, size);
}

ncclResult_t ncclMemFree(void* ptr) {
  if (ptr == nullptr || !is_device_memory(ptr)) return passed(tuttiMemFree(ptr));
  return device_free(ptr);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
  tuttiUniqueId made;
  const tuttiResult_t result = tuttiGetUniqueId(uniqueId == nullptr ? nullptr : &made);
  if (result == tuttiSuccess) memcpy(uniqueId, &made, sizeof made);
  return passed(result);
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return ncclCommInitRankConfig(comm, nranks, commId, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config) {
  return ncclCommInitRankScalable(comm, nranks, rank, 1, &commId, config);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                                      ncclConfig_t* config) {
  if (commIds == nullptr || nId < 1)
    return passed(tuttiCommInitRankScalable(newcomm, nranks, myrank, nId, nullptr, nullptr));
  tuttiConfig_t options;
  const ncclResult_t result = convert(config, device_of_rank(myrank), newcomm, &options);
  if (result != kSuccess) return result;
  auto first = std::bit_cast<tuttiUniqueId>(commIds[0]);  // the other ids are not needed
  return passed(tuttiCommInitRankScalable(newcomm, nranks, myrank, 1, &first, &options));
}

ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist) {
  if (devlist != nullptr || ndev < 1 || device_of_rank(0) < 0) return passed(tuttiCommInitAll(comm, ndev, devlist));
  try {
    std::vector<int> devices(static_cast<size_t>(ndev));
    std::iota(devices.begin(), devices.end(), 0);
    return passed(tuttiCommInitAll(comm, ndev, devices.data()));
  } catch (const std::exception& e) {
    return refused(tuttiSystemError, "ncclCommInitAll with ndev=%d: %s", ndev, e.what());
  }
}

// Finalize, Destroy, Abort and Revoke do nothing with NULL, which a rank without a color has. A thread that has several
// ranks may finalize and destroy one after the other: none waits for another rank.
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return comm == nullptr ? kSuccess : passed(tuttiCommFinalizeLocal(comm));
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return comm == nullptr ? kSuccess : passed(tuttiCommDestroy(comm));
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return comm == nullptr ? kSuccess : passed(tuttiCommAbort(comm));
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  tuttiConfig_t options;
  const ncclResult_t result = convert(config, TUTTI_CONFIG_UNDEF_INT, newcomm, &options);
  if (result != kSuccess) return result;
  return passed(tuttiCommSplit(comm, color, key, newcomm, &options));
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
                            ncclConfig_t* config, int shrinkFlags) {
  tuttiConfig_t options;
  const ncclResult_t result = convert(config, TUTTI_CONFIG_UNDEF_INT, newcomm, &options);
  if (result != kSuccess) return result;
  return passed(tuttiCommShrink(comm, excludeRanksList, excludeRanksCount, newcomm, &options, shrinkFlags));
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags) {
  return comm == nullptr ? kSuccess : passed(tuttiCommRevoke(comm, revokeFlags));
}

// Any id will do for one call of ncclCommGrow.
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId) {
  int rank = -1;
  const tuttiResult_t result = tuttiCommUserRank(comm, &rank);
  return result == tuttiSuccess ? ncclGetUniqueId(uniqueId) : passed(result);
}

ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank, ncclComm_t* newcomm,
                          ncclConfig_t* config) {
  tuttiConfig_t options;
  const int device = comm == nullptr ? current_device() : TUTTI_CONFIG_UNDEF_INT;
  if (const ncclResult_t result = convert(config, device, newcomm, &options); result != kSuccess) return result;
  const tuttiUniqueId id = uniqueId == nullptr ? tuttiUniqueId{} : std::bit_cast<tuttiUniqueId>(*uniqueId);
  return passed(tuttiCommGrow(comm, nRanks, uniqueId == nullptr ? nullptr : &id, rank, newcomm, &options));
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  tuttiResult_t state = tuttiSuccess;
  const tuttiResult_t result = tuttiCommGetAsyncError(comm, asyncError == nullptr ? nullptr : &state);
  if (result == tuttiSuccess) *asyncError = passed(state);
  // Most programs ask for the sentence next, without comm: so it becomes the thread's.
  if (result == tuttiSuccess && state != tuttiSuccess) tuttiGetLastError(comm);
  return passed(result);
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return passed(tuttiCommCount(comm, count));
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  return passed(tuttiCommCuDevice(comm, device));
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return passed(tuttiCommUserRank(comm, rank));
}

ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) {
  enum { kSuspendable = 0, kIsSuspended = 1, kPersistent = 2, kTotal = 3 };
  if (value == nullptr) return refused(tuttiInvalidArgument, "value is NULL");
  if (stat < kSuspendable || stat > kTotal)
    return refused(tuttiInvalidArgument, "stat=%d is not one of ncclCommMemStat_t", stat);
  tuttiCommMemStats_t stats = TUTTI_COMM_MEM_STATS_INITIALIZER;
  const tuttiResult_t result = tuttiCommMemStats(comm, &stats);
  if (result == tuttiSuccess) *value = stat < kPersistent ? 0 : stats.linkBytes + stats.scratchBytes;
  return passed(result);
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle) {
  return passed(tuttiCommRegister(comm, buff, size, handle));
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return passed(tuttiCommDeregister(comm, handle));
}

// A window is only a registration here: no rank writes into another rank's memory, and kernels do not see it.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int) {
  if (win == nullptr) return refused(tuttiInvalidArgument, "win is NULL");
  *win = nullptr;
  void* registration = nullptr;
  const tuttiResult_t result = tuttiCommRegister(comm, buff, size, &registration);
  if (result != tuttiSuccess) return passed(result);
  *win = new (std::nothrow) ncclAbiWindow{registration, buff};
  if (*win != nullptr) return kSuccess;
  tuttiCommDeregister(comm, registration);
  return refused(tuttiSystemError, "no memory for a window");
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  if (win == nullptr) return kSuccess;
  const tuttiResult_t result = tuttiCommDeregister(comm, win->registration);
  if (result == tuttiSuccess) delete win;
  return passed(result);
}

ncclResult_t ncclWinGetUserPtr(ncclComm_t, ncclWindow_t win, void** outUserPtr) {
  if (win == nullptr || outUserPtr == nullptr)
    return refused(tuttiInvalidArgument, "%s is NULL", win == nullptr ? "win" : "outUserPtr");
  *outUserPtr = win->buffer;
  return kSuccess;
}

}  // extern "C"
