// The kernels by name, for who launches them through the CUDA runtime (lib/cuda/runtime.cpp). nvcc makes these
// functions.
#pragma once

#include "kernels/cuda/jobs.h"

namespace tutti::cuda {

// Takes a JobList as its only argument, and kJobThreads threads. kRedOps and so on are told in the list.
const void* reduce_kernel(DataType dtype);
const void* copy_kernel();

}  // namespace tutti::cuda
