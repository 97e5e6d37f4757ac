// Operations, operators and groups: the same under another name.
#include "nccl/shim.h"

using namespace tutti::nccl;  // NOLINT: this file is the boundary

namespace {

tuttiDataType_t type_of(ncclDataType_t type) {
  return static_cast<tuttiDataType_t>(type);
}

tuttiRedOp_t op_of(ncclRedOp_t op) {
  return static_cast<tuttiRedOp_t>(op);
}

// CUDA's names for its default streams, 1 and 2, mean nothing on host memory: there, as with NULL, the operation runs
// in the caller's thread.
tuttiStream_t stream_of(ncclComm_t comm, cudaStream_t stream) {
  const auto number = reinterpret_cast<uintptr_t>(stream);
  int device = -1;
  if (number == 1 || number == 2)
    if (tuttiCommCuDevice(comm, &device) == tuttiSuccess && device < 0) return nullptr;
  return reinterpret_cast<tuttiStream_t>(stream);
}

}  // namespace

extern "C" {

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return passed(tuttiAllReduce(sendbuff, recvbuff, count, type_of(datatype), op_of(op), comm, stream_of(comm, stream)));
}

ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return passed(tuttiBroadcast(sendbuff, recvbuff, count, type_of(datatype), root, comm, stream_of(comm, stream)));
}

ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return passed(tuttiBcast(buff, count, type_of(datatype), root, comm, stream_of(comm, stream)));
}

ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return passed(
      tuttiReduce(sendbuff, recvbuff, count, type_of(datatype), op_of(op), root, comm, stream_of(comm, stream)));
}

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream) {
  return passed(tuttiAllGather(sendbuff, recvbuff, sendcount, type_of(datatype), comm, stream_of(comm, stream)));
}

ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return passed(
      tuttiReduceScatter(sendbuff, recvbuff, recvcount, type_of(datatype), op_of(op), comm, stream_of(comm, stream)));
}

ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                          cudaStream_t stream) {
  return passed(tuttiAlltoAll(sendbuff, recvbuff, count, type_of(datatype), comm, stream_of(comm, stream)));
}

ncclResult_t ncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return passed(tuttiGather(sendbuff, recvbuff, count, type_of(datatype), root, comm, stream_of(comm, stream)));
}

ncclResult_t ncclScatter(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return passed(tuttiScatter(sendbuff, recvbuff, count, type_of(datatype), root, comm, stream_of(comm, stream)));
}

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return passed(tuttiSend(sendbuff, count, type_of(datatype), peer, comm, stream_of(comm, stream)));
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return passed(tuttiRecv(recvbuff, count, type_of(datatype), peer, comm, stream_of(comm, stream)));
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  tuttiRedOp_t made = tuttiNumOps;
  const tuttiResult_t result = tuttiRedOpCreatePreMulSum(op == nullptr ? nullptr : &made, scalar, type_of(datatype),
                                                         static_cast<tuttiScalarResidence_t>(residence), comm);
  if (result == tuttiSuccess) *op = made;
  return passed(result);
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return passed(tuttiRedOpDestroy(op_of(op), comm));
}

ncclResult_t ncclGroupStart(void) {
  group_starts();
  return passed(tuttiGroupStart());
}

ncclResult_t ncclGroupEnd(void) {
  return group_ends(tuttiGroupEnd());
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo) {
  tuttiSimInfo_t info = TUTTI_SIM_INFO_INITIALIZER;
  const bool is_right = simInfo != nullptr && simInfo->magic == NCCL_ABI_SIM_MAGIC && simInfo->size >= sizeof *simInfo;
  if (!is_right) {  // the group ends nevertheless
    group_ends(tuttiGroupSimulateEnd(&info));
    return refused(tuttiInvalidArgument, "simInfo was not initialised: start from NCCL_SIM_INFO_INITIALIZER");
  }
  info.estimatedTime = simInfo->estimatedTime;  // unchanged in a nested group
  const tuttiResult_t result = tuttiGroupSimulateEnd(&info);
  if (result == tuttiSuccess) simInfo->estimatedTime = info.estimatedTime;
  return group_ends(result);
}

}  // extern "C"
