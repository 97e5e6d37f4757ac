// nccl: libnccl.so.2 on top of tutti.h: programs that were built for NCCL run on Tutti. Nothing happens here but
// renaming, the conversion of structs, and asking the CUDA driver for the device that NCCL's functions imply. This
// header: what these files share. All functions from any thread, as tutti.h's; nothing is allocated but windows.
#pragma once

#include "nccl/abi.h"
#include "tutti/tutti.h"

namespace tutti::nccl {

// The result of one of Tutti's functions, which has its sentence for ncclGetLastError.
ncclResult_t passed(tuttiResult_t result);
// What is wrong before Tutti is asked.
ncclResult_t refused(tuttiResult_t code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// What `refused` gave for a call that may be in a group: the group will not run, and its end says why.
ncclResult_t spoils_group(ncclResult_t refusal);
void group_starts();
ncclResult_t group_ends(tuttiResult_t result);
// A function that Tutti has nothing for; `instead` is the remedy.
ncclResult_t unsupported(const char* function, const char* instead);

// The calling thread's CUDA device, or -1 where there is none.
int current_device();
// The same, for a communicator of this rank: the first one, and so one process of a job, warns where there is none,
// because NCCL has no such communicators.
int device_of_rank(int rank);
// Memory of the calling thread's device.
ncclResult_t device_alloc(void** ptr, size_t size);
// Whether it is device memory at all.
bool is_device_memory(void* ptr);
ncclResult_t device_free(void* ptr);

}  // namespace tutti::nccl
