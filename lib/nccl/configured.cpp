// Operations with a configuration of their own (2.32). Its CTAs, clusters and profilers' tags are hints about what
// Tutti does not have, and are ignored; what a program relies on and Tutti cannot do is refused.
#include "nccl/shim.h"

using namespace tutti::nccl;  // NOLINT: this file is the boundary

namespace {

ncclResult_t check(const ncclCollConfig_t* config) {
  if (config == nullptr) return tuttiSuccess;
  if (config->magic != NCCL_ABI_MAGIC || config->size < sizeof *config)
    return refused(tuttiInvalidArgument, "config was not initialised: start from NCCL_COLLCONFIG_INITIALIZER");
  if (config->algSelection != nullptr && *config->algSelection != 0 && config->forceAlgSelection != 0)
    return refused(
        tuttiInvalidUsage,
        "algSelection=\"%s\" cannot be chosen for a single operation: set forceAlgSelection to 0, or choose an "
        "algorithm for all of them with TUTTI_ALGO",
        config->algSelection);
  if (config->launchCompletionEvent != nullptr)
    return refused(tuttiInvalidUsage,
                   "launchCompletionEvent is not supported: record an event on the stream after the operation");
  return tuttiSuccess;
}

template <class Call, class... Arguments>
ncclResult_t configured(const ncclCollConfig_t* config, Call call, Arguments... arguments) {
  const ncclResult_t checked = check(config);
  return checked != tuttiSuccess ? fail_group(checked) : call(arguments...);
}

}  // namespace

extern "C" {

ncclResult_t ncclAllReduceConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return configured(config, ncclAllReduce, sendbuff, recvbuff, count, datatype, op, comm, stream);
}

ncclResult_t ncclBroadcastConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return configured(config, ncclBroadcast, sendbuff, recvbuff, count, datatype, root, comm, stream);
}

ncclResult_t ncclReduceConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                              ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                              const ncclCollConfig_t* config) {
  return configured(config, ncclReduce, sendbuff, recvbuff, count, datatype, op, root, comm, stream);
}

ncclResult_t ncclAllGatherConfig(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return configured(config, ncclAllGather, sendbuff, recvbuff, sendcount, datatype, comm, stream);
}

ncclResult_t ncclReduceScatterConfig(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                     const ncclCollConfig_t* config) {
  return configured(config, ncclReduceScatter, sendbuff, recvbuff, recvcount, datatype, op, comm, stream);
}

ncclResult_t ncclAlltoAllConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return configured(config, ncclAlltoAll, sendbuff, recvbuff, count, datatype, comm, stream);
}

ncclResult_t ncclGatherConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                              ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return configured(config, ncclGather, sendbuff, recvbuff, count, datatype, root, comm, stream);
}

ncclResult_t ncclScatterConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return configured(config, ncclScatter, sendbuff, recvbuff, count, datatype, root, comm, stream);
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
