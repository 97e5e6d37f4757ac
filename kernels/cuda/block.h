// A block of threads that works as one: the same code on the GPU, where every thread of the block runs it, and on a
// CPU, where one thread stands in for all. Results are the same, bit by bit.
#pragma once

#include <cstdint>

#include "kernels/target.h"

namespace tutti::cuda {

template <uint32_t kThreads>
class Block {
 public:
  __host__ __device__ Block(uint32_t number, uint32_t n_blocks) : number_(number), n_blocks_(n_blocks) {}

  // Which block of how many.
  __host__ __device__ uint32_t number() const { return number_; }
  __host__ __device__ uint32_t n_blocks() const { return n_blocks_; }

  // does(thread) for each thread. Afterwards all of them see what each has written.
  template <class Does>
  __host__ __device__ void each(Does&& does) const {
#if defined(__CUDA_ARCH__)
    does(threadIdx.x);
    __syncthreads();
#else
    for (uint32_t thread = 0; thread < kThreads; thread++) does(thread);
#endif
  }

  // does(thread, m) for each thread, m being the largest part(thread) of its warp.
  template <class Part, class Does>
  __host__ __device__ void with_largest_of_warp(Part&& part, Does&& does) const {
#if defined(__CUDA_ARCH__)
    uint32_t largest = part(threadIdx.x);
#pragma unroll
    for (uint32_t distance = kWarpThreads / 2; distance > 0; distance /= 2) {
      const uint32_t other = __shfl_xor_sync(~0u, largest, distance);
      largest = other > largest ? other : largest;
    }
    does(threadIdx.x, largest);
#else
    for (uint32_t first = 0; first < kThreads; first += kWarpThreads) {
      uint32_t largest = 0;
      for (uint32_t thread = first; thread < first + kWarpThreads; thread++) {
        const uint32_t one = part(thread);
        largest = one > largest ? one : largest;
      }
      for (uint32_t thread = first; thread < first + kWarpThreads; thread++) does(thread, largest);
    }
#endif
  }

  // The sum of part(thread) over all threads, pair by pair; all threads get it.
  template <class Value, class Part>
  __host__ __device__ Value sum(Part&& part) const {
#if defined(__CUDA_ARCH__)
    __shared__ Value warps[kWarps];
    Value value = part(threadIdx.x);
#pragma unroll
    for (uint32_t distance = kWarpThreads / 2; distance > 0; distance /= 2)
      value += __shfl_xor_sync(~0u, value, distance);
    if (threadIdx.x % kWarpThreads == 0) warps[threadIdx.x / kWarpThreads] = value;
    __syncthreads();
    value = warps[0];
#pragma unroll
    for (uint32_t warp = 1; warp < kWarps; warp++) value += warps[warp];
    __syncthreads();  // before the next sum
    return value;
#else
    Value values[kThreads];
    for (uint32_t thread = 0; thread < kThreads; thread++) values[thread] = part(thread);
    for (uint32_t first = 0; first < kThreads; first += kWarpThreads)
      for (uint32_t distance = kWarpThreads / 2; distance > 0; distance /= 2)
        for (uint32_t thread = first; thread < first + distance; thread++) values[thread] += values[thread + distance];
    for (uint32_t warp = 1; warp < kWarps; warp++) values[0] += values[warp * kWarpThreads];
    return values[0];
#endif
  }

  static constexpr uint32_t kWarpThreads = 32, kWarps = kThreads / kWarpThreads;

 private:
  const uint32_t number_, n_blocks_;
};

}  // namespace tutti::cuda
