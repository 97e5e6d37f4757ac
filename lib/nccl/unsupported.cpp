// What Tutti does not support, so that a program that calls it gets an error instead of failing to start.
#include "nccl/shim.h"

using tutti::nccl::fail_group, tutti::nccl::unsupported;

namespace {

constexpr const char* kOneSided = "one-sided operations are not supported; use ncclSend and ncclRecv";
constexpr const char* kParameters = "Tutti is configured by the TUTTI_ variables that include/tutti/README.md lists";
constexpr const char* kInKernels = "kernels cannot communicate; call ncclAllReduce and the other functions of nccl.h";
constexpr const char* kSuspend = "destroy the communicator and create it again to free its memory";

}  // namespace

// A function, and what to do instead.
#define TUTTI_NCCL_UNSUPPORTED(name, parameters, instead) \
  ncclResult_t name parameters {                          \
    return unsupported(#name, instead);                   \
  }
// An operation, which may be in a group.
#define TUTTI_NCCL_ONE_SIDED(name, parameters)        \
  ncclResult_t name parameters {                      \
    return fail_group(unsupported(#name, kOneSided)); \
  }

extern "C" {

TUTTI_NCCL_UNSUPPORTED(ncclCommSuspend, (ncclComm_t, int), kSuspend)
TUTTI_NCCL_UNSUPPORTED(ncclCommResume, (ncclComm_t), kSuspend)
TUTTI_NCCL_ONE_SIDED(ncclPutSignal, (const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int, unsigned,
                                     ncclComm_t, cudaStream_t))
TUTTI_NCCL_ONE_SIDED(ncclSignal, (int, int, int, unsigned, ncclComm_t, cudaStream_t))
TUTTI_NCCL_ONE_SIDED(ncclWaitSignal, (int, ncclWaitSignalDesc_t*, ncclComm_t, cudaStream_t))

// Of nccl_device.h.
TUTTI_NCCL_UNSUPPORTED(ncclCommQueryProperties, (ncclComm_t, ncclCommProperties_t*), kInKernels)
TUTTI_NCCL_UNSUPPORTED(ncclDevCommCreate, (ncclComm_t, const ncclDevCommRequirements_t*, ncclDevComm_t*), kInKernels)
TUTTI_NCCL_UNSUPPORTED(ncclDevCommDestroy, (ncclComm_t, const ncclDevComm_t*), kInKernels)
// Torch for CUDA needs these to be loaded.
TUTTI_NCCL_UNSUPPORTED(ncclGetLsaDevicePointer, (ncclWindow_t, size_t, int, void**), kInKernels)
TUTTI_NCCL_UNSUPPORTED(ncclGetPeerDevicePointer, (ncclWindow_t, size_t, int, void**), kInKernels)
TUTTI_NCCL_UNSUPPORTED(ncclGetLsaMultimemDevicePointer, (ncclWindow_t, size_t, void**), kInKernels)
TUTTI_NCCL_UNSUPPORTED(ncclGetMultimemDevicePointer, (ncclWindow_t, size_t, ncclMultimemHandle_t, void**), kInKernels)
TUTTI_NCCL_UNSUPPORTED(ncclGetPeerDeviceLeInfo, (ncclWindow_t, size_t, int, ncclCftLeId*, size_t*), kInKernels)
TUTTI_NCCL_UNSUPPORTED(ncclGetMultimemDeviceLeInfo, (ncclWindow_t, size_t, ncclCftLeId*, size_t*), kInKernels)
TUTTI_NCCL_UNSUPPORTED(ncclGetCftDeviceLeInfo, (ncclWindow_t, size_t, int, ncclTeam_t, ncclCftLeId*, size_t*),
                       kInKernels)

// The ranks that a kernel reaches: only this one.
ncclTeam_t ncclTeamLsa(ncclComm_t) {
  return {1, 0, 1};
}
ncclTeam_t ncclTeamRail(ncclComm_t) {
  return {1, 0, 1};
}

ncclTeam_t ncclTeamWorld(ncclComm_t comm) {
  ncclTeam_t team = {1, 0, 1};
  if (tuttiCommCount(comm, &team.nRanks) == tuttiSuccess) (void)tuttiCommUserRank(comm, &team.rank);
  return team;
}

TUTTI_NCCL_UNSUPPORTED(ncclParamBind, (ncclParamHandle_t*, const char*), kParameters)
TUTTI_NCCL_UNSUPPORTED(ncclParamGetI8, (ncclParamHandle_t, int8_t*), kParameters)
TUTTI_NCCL_UNSUPPORTED(ncclParamGetI16, (ncclParamHandle_t, int16_t*), kParameters)
TUTTI_NCCL_UNSUPPORTED(ncclParamGetI32, (ncclParamHandle_t, int32_t*), kParameters)
TUTTI_NCCL_UNSUPPORTED(ncclParamGetI64, (ncclParamHandle_t, int64_t*), kParameters)
TUTTI_NCCL_UNSUPPORTED(ncclParamGetU8, (ncclParamHandle_t, uint8_t*), kParameters)
TUTTI_NCCL_UNSUPPORTED(ncclParamGetU16, (ncclParamHandle_t, uint16_t*), kParameters)
TUTTI_NCCL_UNSUPPORTED(ncclParamGetU32, (ncclParamHandle_t, uint32_t*), kParameters)
TUTTI_NCCL_UNSUPPORTED(ncclParamGetU64, (ncclParamHandle_t, uint64_t*), kParameters)
TUTTI_NCCL_UNSUPPORTED(ncclParamGetStr, (ncclParamHandle_t, const char**), kParameters)
TUTTI_NCCL_UNSUPPORTED(ncclParamGet, (ncclParamHandle_t, void*, int, int*), kParameters)
TUTTI_NCCL_UNSUPPORTED(ncclParamGetParameter, (const char*, const char**, int*), kParameters)
TUTTI_NCCL_UNSUPPORTED(ncclParamGetAllParameterKeys, (const char***, int*), kParameters)

void ncclParamDumpAll(void) {}

}  // extern "C"
