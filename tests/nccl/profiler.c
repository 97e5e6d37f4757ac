/* As a profiler does: a function stands in for the library's, which has another name for that. */
#include "nccl/abi.h"

ncclResult_t pncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream);
static int seen = 0;

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  seen++;
  return pncclAllReduce(sendbuff, recvbuff, count, datatype, op, comm, stream);
}

int main(void) {
  enum { kFloat = 7, kSum = 0 };
  ncclUniqueId id;
  ncclComm_t comm;
  float value = 1;
  if (ncclGetUniqueId(&id) != 0 || ncclCommInitRank(&comm, 1, id, 0) != 0) return 1;
  if (ncclAllReduceConfig(&value, &value, 1, kFloat, kSum, comm, NULL, NULL) != 0 || seen != 0) return 2;
  if (ncclAllReduce(&value, &value, 1, kFloat, kSum, comm, NULL) != 0 || seen != 1) return 3;
  return ncclCommDestroy(comm);
}
