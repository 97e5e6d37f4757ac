// The library's launches as grids of PTX: which kernel a call uses, and which memory it may read and write.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/gradients.h"
#include "kernels/cuda/jobs.h"
#include "kernels/cuda/lines.h"
#include "kernels/cuda/program.h"
#include "machine.h"

namespace tutti_test::ptx {

// Ready to run, after any other memory is added to its ranges and finish_ranges() is called.
std::unique_ptr<Grid> grid_of(const Module& module, const tutti::cuda::JobList& list);
std::unique_ptr<Grid> grid_of(const Module& module, const tutti::cuda::ProgramCall& call);
std::unique_ptr<Grid> grid_of(const Module& module, const tutti::cuda::LineCall& call);
std::unique_ptr<Grid> grid_of(const Module& module, const tutti::cuda::SpanCall& call, uint32_t n_blocks);
std::unique_ptr<Grid> grid_of(const Module& module, const tutti::cuda::FactorCall& call, uint32_t n_blocks);

// The first fault; empty if there is none.
std::string run(Grid* grid, bool all_at_once);
template <class Call>
std::string run(const Module& module, const Call& call, uint32_t n_blocks) {
  return run(grid_of(module, call, n_blocks).get(), false);
}
template <class Call>
std::string run(const Module& module, const Call& call) {
  return run(grid_of(module, call).get(), true);
}

}  // namespace tutti_test::ptx
