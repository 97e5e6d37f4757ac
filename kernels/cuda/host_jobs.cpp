// The CPU's twin of jobs.cu.
#include <utility>

#include "kernels/cuda/run_jobs.h"

namespace tutti::cuda {
namespace {

template <class T, int kUnroll, bool kCopies>
void run_threads(const JobList& list) {
  const uint32_t n_blocks = tiles_of(list);
  for (uint32_t block = 0; block < n_blocks; block++)
    for (uint32_t thread = 0; thread < kJobThreads; thread++)
      run_jobs<T, kUnroll, kCopies>(list, {block, n_blocks, thread, kJobThreads});
}

using Kernel = void (*)(const JobList&);

template <size_t... kType>
Kernel find_kernel(DataType dtype, std::index_sequence<kType...>) {
  static constexpr Kernel kKernels[] = {
      run_threads<ElementOf<kType>, job_unroll(static_cast<DataType>(kType)), false>...};
  return kKernels[static_cast<int>(dtype)];
}

// Cuts the list into tiles of `turns` packs for each thread.
void cut(JobList& list, int turns) {
  list.tile_turns = static_cast<uint8_t>(turns);
  const uint64_t tile_elems = uint64_t{16} * kJobThreads * list.tile_turns / dtype_bytes(list.dtype);
  uint64_t tiles = 0;
  for (int j = 0; j < list.n_jobs; j++) {
    tiles += (list.jobs[j].elems + tile_elems - 1) / tile_elems;
    list.jobs[j].end_tile = static_cast<uint32_t>(tiles);
  }
}

}  // namespace

void finish_list(JobList& list, int multiprocessors) {
  list.only_bytes = !list.scaled;
  for (int j = 0; j < list.n_jobs; j++)
    if (list.jobs[j].n_src != 1 || list.jobs[j].divisor > 1) list.only_bytes = false;
  if (list.only_bytes) {
    for (int j = 0; j < list.n_jobs; j++) list.jobs[j].elems *= dtype_bytes(list.dtype);
    list.dtype = DataType::kUint8;
  }
  cut(list, list.only_bytes ? kCopyUnroll : job_unroll(list.dtype));
  const int blocks = multiprocessors * (list.only_bytes ? kCopyBlocks : job_blocks(list.dtype));
  if (tiles_of(list) < static_cast<uint32_t>(blocks)) cut(list, 1);
}

void run_jobs_on_host(const JobList& list) {
  if (list.only_bytes) return run_threads<Plain<uint8_t>, kCopyUnroll, true>(list);
  find_kernel(list.dtype, std::make_index_sequence<kDataTypes>())(list);
}

}  // namespace tutti::cuda
