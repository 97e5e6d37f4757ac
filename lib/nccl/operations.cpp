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

// CTAs, clusters and profilers' tags are hints about what Tutti does not have, and are ignored; what a program relies
// on and Tutti cannot do is refused.
ncclResult_t check(const ncclCollConfig_t* config) {
  if (config == nullptr) return tuttiSuccess;
  constexpr size_t kLeastBytes = offsetof(ncclCollConfig_t, launchCompletionEvent);  // NCCL 2.31's, the first
  if (config->magic != NCCL_ABI_MAGIC || config->size < kLeastBytes)
    return refused(tuttiInvalidArgument, "config was not initialised: start from NCCL_COLLCONFIG_INITIALIZER");
  if (config->algSelection != nullptr && *config->algSelection != 0 && config->forceAlgSelection != 0)
    return refused(
        tuttiInvalidUsage,
        "algSelection=\"%s\" cannot be chosen for a single operation: set forceAlgSelection to 0, or choose an "
        "algorithm for all of them with TUTTI_ALGO",
        config->algSelection);
  if (config->size >= sizeof *config && config->launchCompletionEvent != nullptr)
    return refused(tuttiInvalidUsage,
                   "launchCompletionEvent is not supported: record an event on the stream after the operation");
  return tuttiSuccess;
}

}  // namespace

// An operation, by Tutti's of that name: the arguments of that, and its own parameters except for the last two.
#define TUTTI_NCCL_OPERATION(name, arguments, ...)                             \
  ncclResult_t nccl##name(__VA_ARGS__, ncclComm_t comm, cudaStream_t stream) { \
    return passed(tutti##name arguments);                                      \
  }
// The same, and the one with a configuration of its own (2.31).
#define TUTTI_NCCL_CONFIGURED(name, arguments, ...)                                                                    \
  TUTTI_NCCL_OPERATION(name, arguments, __VA_ARGS__)                                                                   \
  ncclResult_t nccl##name##Config(__VA_ARGS__, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) { \
    const ncclResult_t checked = check(config);                                                                        \
    return checked == tuttiSuccess ? passed(tutti##name arguments) : fail_group(checked);                              \
  }

extern "C" {

TUTTI_NCCL_CONFIGURED(AllReduce,
                      (sendbuff, recvbuff, count, type_of(datatype), op_of(op), comm, stream_of(comm, stream)),
                      const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op)
TUTTI_NCCL_CONFIGURED(Broadcast, (sendbuff, recvbuff, count, type_of(datatype), root, comm, stream_of(comm, stream)),
                      const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root)
TUTTI_NCCL_OPERATION(Bcast, (buff, count, type_of(datatype), root, comm, stream_of(comm, stream)), void* buff,
                     size_t count, ncclDataType_t datatype, int root)
TUTTI_NCCL_CONFIGURED(Reduce,
                      (sendbuff, recvbuff, count, type_of(datatype), op_of(op), root, comm, stream_of(comm, stream)),
                      const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                      int root)
TUTTI_NCCL_CONFIGURED(AllGather, (sendbuff, recvbuff, sendcount, type_of(datatype), comm, stream_of(comm, stream)),
                      const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype)
TUTTI_NCCL_CONFIGURED(ReduceScatter,
                      (sendbuff, recvbuff, recvcount, type_of(datatype), op_of(op), comm, stream_of(comm, stream)),
                      const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op)
TUTTI_NCCL_CONFIGURED(AlltoAll, (sendbuff, recvbuff, count, type_of(datatype), comm, stream_of(comm, stream)),
                      const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype)
TUTTI_NCCL_CONFIGURED(Gather, (sendbuff, recvbuff, count, type_of(datatype), root, comm, stream_of(comm, stream)),
                      const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root)
TUTTI_NCCL_CONFIGURED(Scatter, (sendbuff, recvbuff, count, type_of(datatype), root, comm, stream_of(comm, stream)),
                      const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root)
TUTTI_NCCL_OPERATION(Send, (sendbuff, count, type_of(datatype), peer, comm, stream_of(comm, stream)),
                     const void* sendbuff, size_t count, ncclDataType_t datatype, int peer)
TUTTI_NCCL_OPERATION(Recv, (recvbuff, count, type_of(datatype), peer, comm, stream_of(comm, stream)), void* recvbuff,
                     size_t count, ncclDataType_t datatype, int peer)

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

ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t* config) {
  constexpr int kPlaintext = 0;
  if (config == nullptr || config->magic != NCCL_ABI_MAGIC || config->size < sizeof *config)
    return refused(tuttiInvalidArgument, "config was not initialised: start from NCCL_ENCRYPTION_CONFIG_INITIALIZER");
  if (config->mode == kPlaintext) return tuttiSuccess;
  return unsupported("ncclSetEncryption with a key",
                     "Tutti does not encrypt with a program's key: set TUTTI_ENCRYPT=1 on all ranks, which encrypts "
                     "with keys made from the unique id's");
}

}  // extern "C"
