// The kernels, for code that launches them through the CUDA runtime (lib/cuda/runtime.cpp). nvcc compiles these
// functions.
#pragma once

#include "kernels/cuda/gradients.h"
#include "kernels/cuda/jobs.h"
#include "kernels/cuda/lines.h"
#include "kernels/cuda/program.h"

namespace tutti::cuda {

// Takes a JobList as its only argument, and kJobThreads threads. The list also holds the operator.
const void* reduce_kernel(DataType dtype);
const void* copy_kernel();
// Takes a ProgramCall as its only argument, kProgramThreads threads and blocks_of(call) blocks, all of them at once: a
// cooperative launch.
const void* program_kernel(DataType dtype);
// Takes the LineCall as its only argument, line_threads() threads and line_blocks() blocks.
const void* line_kernel(const LineCall& call);
// Take the call as their only argument, and kGradientThreads threads.
const void* span_kernel(const SpanCall& call);
const void* factor_kernel(FactorPart part);

}  // namespace tutti::cuda
