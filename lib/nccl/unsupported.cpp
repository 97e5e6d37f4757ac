// What Tutti has nothing for, so that a program that asks for it is told instead of not starting.
#include "nccl/shim.h"

using tutti::nccl::unsupported;

namespace {

constexpr const char* kOneSided = "one-sided operations are not supported; use ncclSend and ncclRecv";
constexpr const char* kParameters = "Tutti is configured by the TUTTI_ variables that include/tutti/README.md lists";
constexpr const char* kInKernels = "kernels cannot communicate; call ncclAllReduce and the other functions of nccl.h";
constexpr const char* kSuspend = "destroy the communicator and create it again to free its memory";

}  // namespace

extern "C" {

ncclResult_t ncclCommSuspend(ncclComm_t, int) {
  return unsupported("ncclCommSuspend", kSuspend);
}

ncclResult_t ncclCommResume(ncclComm_t) {
  return unsupported("ncclCommResume", kSuspend);
}

ncclResult_t ncclPutSignal(const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int, unsigned,
                           ncclComm_t, cudaStream_t) {
  return unsupported("ncclPutSignal", kOneSided);
}

ncclResult_t ncclSignal(int, int, int, unsigned, ncclComm_t, cudaStream_t) {
  return unsupported("ncclSignal", kOneSided);
}

ncclResult_t ncclWaitSignal(int, ncclWaitSignalDesc_t*, ncclComm_t, cudaStream_t) {
  return unsupported("ncclWaitSignal", kOneSided);
}

// Of nccl_device.h.
ncclResult_t ncclCommQueryProperties(ncclComm_t, ncclCommProperties_t*) {
  return unsupported("ncclCommQueryProperties", kInKernels);
}

ncclResult_t ncclDevCommCreate(ncclComm_t, const ncclDevCommRequirements_t*, ncclDevComm_t*) {
  return unsupported("ncclDevCommCreate", kInKernels);
}

ncclResult_t ncclDevCommDestroy(ncclComm_t, const ncclDevComm_t*) {
  return unsupported("ncclDevCommDestroy", kInKernels);
}

ncclTeam_t ncclTeamLsa(ncclComm_t) {
  return {1, 0, 1};  // whose memory a kernel reaches: the rank's own
}

ncclResult_t ncclParamBind(ncclParamHandle_t*, const char*) {
  return unsupported("ncclParamBind", kParameters);
}

ncclResult_t ncclParamGetI8(ncclParamHandle_t, int8_t*) {
  return unsupported("ncclParamGetI8", kParameters);
}

ncclResult_t ncclParamGetI16(ncclParamHandle_t, int16_t*) {
  return unsupported("ncclParamGetI16", kParameters);
}

ncclResult_t ncclParamGetI32(ncclParamHandle_t, int32_t*) {
  return unsupported("ncclParamGetI32", kParameters);
}

ncclResult_t ncclParamGetI64(ncclParamHandle_t, int64_t*) {
  return unsupported("ncclParamGetI64", kParameters);
}

ncclResult_t ncclParamGetU8(ncclParamHandle_t, uint8_t*) {
  return unsupported("ncclParamGetU8", kParameters);
}

ncclResult_t ncclParamGetU16(ncclParamHandle_t, uint16_t*) {
  return unsupported("ncclParamGetU16", kParameters);
}

ncclResult_t ncclParamGetU32(ncclParamHandle_t, uint32_t*) {
  return unsupported("ncclParamGetU32", kParameters);
}

ncclResult_t ncclParamGetU64(ncclParamHandle_t, uint64_t*) {
  return unsupported("ncclParamGetU64", kParameters);
}

ncclResult_t ncclParamGetStr(ncclParamHandle_t, const char**) {
  return unsupported("ncclParamGetStr", kParameters);
}

ncclResult_t ncclParamGet(ncclParamHandle_t, void*, int, int*) {
  return unsupported("ncclParamGet", kParameters);
}

ncclResult_t ncclParamGetParameter(const char*, const char**, int*) {
  return unsupported("ncclParamGetParameter", kParameters);
}

ncclResult_t ncclParamGetAllParameterKeys(const char***, int*) {
  return unsupported("ncclParamGetAllParameterKeys", kParameters);
}

void ncclParamDumpAll(void) {}

}  // extern "C"
