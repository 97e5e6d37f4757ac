// The arguments of the GPU's copying and reducing kernels: plain data that is passed by value, so that a launch that
// was captured into a graph contains all of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace tutti::cuda {

// One n-ary reduction, or copy where there is one source: element i of every destination is the sum, in the order of
// the sources, of element i of all of them. A destination may be a source too. Any alignment.
struct Job {
  uint64_t elems = 0;
  uint32_t divisor = 0;   // of an average, if not 0
  uint32_t end_tile = 0;  // tiles of this job and of those before it
  uint16_t first_pointer = 0;
  uint8_t n_src = 0, n_dst = 0;
};

// What a source is multiplied by: the element at `at`, read when the kernel runs, or in `bits` if `at` is null.
struct Scale {
  uint64_t bits = 0;
  const void* at = nullptr;
};

inline constexpr int kMaxPlaces = 64;  // sources or destinations of a job
inline constexpr int kMaxJobs = 40, kMaxPointers = 224;

struct JobList {
  Job jobs[kMaxJobs];
  const void* pointers[kMaxPointers];  // each job's sources, then its destinations
  Scale scales[kMaxPlaces];            // by source, for all jobs, if `scaled`
  const uint32_t* stop = nullptr;      // in this GPU's memory: if it is not 0, blocks that begin do nothing
  uint16_t n_jobs = 0, n_pointers = 0;
  DataType dtype = DataType::kInt8;
  RedOp op = RedOp::kSum;
  bool scaled = false;
  bool only_bytes = false;  // nothing is added up, scaled or divided; elements are single bytes
  uint8_t tile_turns = 0;   // packs of 16 bytes that a tile has for each thread of a block

  // False if there is no room left.
  bool add(uint64_t elems, uint32_t divisor, const void* const* src, int n_src, void* const* dst, int n_dst) {
    if (n_jobs == kMaxJobs || n_pointers + n_src + n_dst > kMaxPointers) return false;
    jobs[n_jobs++] = {elems, divisor, 0, n_pointers, static_cast<uint8_t>(n_src), static_cast<uint8_t>(n_dst)};
    for (int i = 0; i < n_src; i++) pointers[n_pointers++] = src[i];
    for (int i = 0; i < n_dst; i++) pointers[n_pointers++] = dst[i];
    return true;
  }
};
// To be called once all jobs are added: copies become copies of bytes, and jobs are cut into tiles, small ones if large
// ones would not occupy this many multiprocessors.
void finish_list(JobList& list, int multiprocessors);
// Each is a block's work. If blocks take one tile after another, copies reach 89 instead of 95 % of an H200's own copy
// rate, and sums of two inputs 94 instead of 102 %.
inline uint32_t tiles_of(const JobList& list) {
  return list.n_jobs == 0 ? 0 : list.jobs[list.n_jobs - 1].end_tile;
}

static_assert(sizeof(JobList) <= 4096, "the argument of a kernel");

inline constexpr int kJobThreads = 256;  // of a block
// The 16-byte accesses that each thread has in flight, and the blocks that a multiprocessor holds at least. With two
// blocks, sums of bfloat16 reach 80 to 87 % of an H200's copy rate instead of 96 to 104, and those of int8 51 instead
// of 88, although with five the latter spill some registers. Sums of 8-bit floats would gain too, from 50 to 59 %, but
// on sm_100 they would spill far too many.
constexpr int job_unroll(DataType dtype) {
  return dtype_bytes(dtype) == 1 ? 2 : 4;
}
constexpr int job_blocks(DataType dtype) {
  return dtype == DataType::kInt8 || dtype == DataType::kUint8 ? 5 : 3;
}
inline constexpr int kCopyUnroll = 8, kCopyBlocks = 3;
}  // namespace tutti::cuda
