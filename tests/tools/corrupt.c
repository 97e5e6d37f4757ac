/* Preloaded between the tool and the library: one bit in the middle of every bfloat16 result is wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "tutti/tutti.h"

typedef tuttiResult_t (*AllReduce)(const void*, void*, size_t, tuttiDataType_t, tuttiRedOp_t, tuttiComm_t,
                                   tuttiStream_t);

TUTTI_API tuttiResult_t tuttiAllReduce(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                                       tuttiRedOp_t op, tuttiComm_t comm, tuttiStream_t stream) {
  AllReduce real;
  *(void**)&real = dlsym(RTLD_NEXT, "tuttiAllReduce");
  tuttiResult_t result = real(sendbuff, recvbuff, count, datatype, op, comm, stream);
  if (datatype == tuttiBfloat16) ((char*)recvbuff)[count] ^= 1;
  return result;
}
