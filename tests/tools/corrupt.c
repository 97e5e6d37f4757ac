/* Preloaded between a tool and the library: calls that do not do what they should. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "tutti/tutti.h"

typedef tuttiResult_t (*AllReduce)(const void*, void*, size_t, tuttiDataType_t, tuttiRedOp_t, tuttiComm_t,
                                   tuttiStream_t);
typedef tuttiResult_t (*Gather)(const void*, void*, size_t, tuttiDataType_t, int, tuttiComm_t, tuttiStream_t);
typedef tuttiResult_t (*AllGather)(const void*, void*, size_t, tuttiDataType_t, tuttiComm_t, tuttiStream_t);
typedef tuttiResult_t (*AlltoAllv)(const void*, const size_t*, const size_t*, void*, const size_t*, const size_t*,
                                   tuttiDataType_t, tuttiComm_t, tuttiStream_t);

/* One bit in the middle of every bfloat16 result is wrong. */
TUTTI_API tuttiResult_t tuttiAllReduce(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                                       tuttiRedOp_t op, tuttiComm_t comm, tuttiStream_t stream) {
  AllReduce real;
  *(void**)&real = dlsym(RTLD_NEXT, "tuttiAllReduce");
  tuttiResult_t result = real(sendbuff, recvbuff, count, datatype, op, comm, stream);
  if (datatype == tuttiBfloat16) ((char*)recvbuff)[count] ^= 1;
  return result;
}

/* Writes one byte more than the block of floats: in place, into the next block of the input. */
TUTTI_API tuttiResult_t tuttiReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                           tuttiDataType_t datatype, tuttiRedOp_t op, tuttiComm_t comm,
                                           tuttiStream_t stream) {
  AllReduce real;
  *(void**)&real = dlsym(RTLD_NEXT, "tuttiReduceScatter");
  tuttiResult_t result = real(sendbuff, recvbuff, recvcount, datatype, op, comm, stream);
  ((char*)recvbuff)[recvcount * sizeof(float)] ^= 1;
  return result;
}

/* Writes where only the root may. */
TUTTI_API tuttiResult_t tuttiGather(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                                    int root, tuttiComm_t comm, tuttiStream_t stream) {
  Gather real;
  *(void**)&real = dlsym(RTLD_NEXT, "tuttiGather");
  tuttiResult_t result = real(sendbuff, recvbuff, count, datatype, root, comm, stream);
  int rank = root;
  tuttiCommUserRank(comm, &rank);
  if (rank != root) ((char*)recvbuff)[0] ^= 1;
  return result;
}

/* Block 0 is in block 1's place too. */
TUTTI_API tuttiResult_t tuttiAlltoAll(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                                      tuttiComm_t comm, tuttiStream_t stream) {
  AllGather real;
  *(void**)&real = dlsym(RTLD_NEXT, "tuttiAlltoAll");
  tuttiResult_t result = real(sendbuff, recvbuff, count, datatype, comm, stream);
  float* floats = recvbuff;
  for (size_t i = 0; i < count; i++) floats[count + i] = floats[i];
  return result;
}

/* Writes a byte behind the last block. */
TUTTI_API tuttiResult_t tuttiAlltoAllv(const void* sendbuff, const size_t* sendcounts, const size_t* sdispls,
                                       void* recvbuff, const size_t* recvcounts, const size_t* rdispls,
                                       tuttiDataType_t datatype, tuttiComm_t comm, tuttiStream_t stream) {
  AlltoAllv real;
  *(void**)&real = dlsym(RTLD_NEXT, "tuttiAlltoAllv");
  tuttiResult_t result = real(sendbuff, sendcounts, sdispls, recvbuff, recvcounts, rdispls, datatype, comm, stream);
  int last = 0;
  tuttiCommCount(comm, &last);
  last--;
  ((char*)recvbuff)[(rdispls[last] + recvcounts[last]) * sizeof(float)] ^= 1;
  return result;
}

/* Waits for nobody. */
TUTTI_API tuttiResult_t tuttiBarrier(tuttiComm_t comm, tuttiStream_t stream) {
  (void)comm;
  (void)stream;
  return tuttiSuccess;
}
