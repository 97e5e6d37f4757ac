// The kernels' CPU twins, each a launch: the same bodies (kernels/cuda/run_*.h), compiled for the CPU.
#pragma once

#include "kernels/cuda/gradients.h"
#include "kernels/cuda/jobs.h"
#include "kernels/cuda/lines.h"
#include "kernels/cuda/program.h"

namespace tutti::cuda {

// Every thread of the grid, one after another.
void run_jobs_on_host(const JobList& list);
// Every block is a thread.
void run_program_on_host(const ProgramCall& call);
// Waits for the other ranks' launches, so these run on other threads.
void run_lines_on_host(const LineCall& call);
// Every block, one after another.
void run_spans_on_host(const SpanCall& call, uint32_t n_blocks);
void run_factors_on_host(const FactorCall& call, uint32_t n_blocks);

}  // namespace tutti::cuda
