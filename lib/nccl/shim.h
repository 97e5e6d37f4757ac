// nccl: libnccl.so.2 on top of tutti.h, with which programs that were built for NCCL run on Tutti. All that it does is
// rename, convert structs, and ask the CUDA driver for the device that NCCL's functions imply. This header: what these
// files share. All functions from any thread, like tutti.h's; nothing is allocated except windows.
#pragma once

#include "nccl/abi.h"
#include "tutti/tutti.h"

namespace tutti::nccl {

// Passes on the result of one of Tutti's functions, which keeps its own sentence for ncclGetLastError.
ncclResult_t passed(tuttiResult_t result);
// Reports an error that is found before Tutti is called.
ncclResult_t refused(tuttiResult_t code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// For the result of refused() of a call that may be in a group: the group will not run, and its end says why.
ncclResult_t fail_group(ncclResult_t refusal);
void group_starts();
ncclResult_t group_ends(tuttiResult_t result);
// A function that Tutti does not support; `instead` is the remedy.
ncclResult_t unsupported(const char* function, const char* instead);

// The calling thread's CUDA device, or -1 where there is none.
int current_device();
// The same, for a communicator of this rank. Rank 0, and so only one process of a job, warns if there is no device,
// because NCCL has no such communicators.
int device_of_rank(int rank);
// Allocates memory on the calling thread's device.
ncclResult_t device_alloc(void** ptr, size_t size);
// Whether it is device memory at all.
bool is_device_memory(void* ptr);
ncclResult_t device_free(void* ptr);

}  // namespace tutti::nccl
