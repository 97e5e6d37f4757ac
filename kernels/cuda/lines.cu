// All-reduces between GPUs by lines: a kernel for each data type, and one hop or two.
#include <utility>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/run_lines.h"

namespace tutti::cuda {
namespace lines {  // not unnamed: kernels' names must not depend on where the tree is

__device__ uint32_t begin_epoch(const LineCall& call) {
  const uint32_t epoch = call.epochs[blockIdx.x] + 1;
  __syncthreads();  // all have read it
  if (threadIdx.x == 0) call.epochs[blockIdx.x] = epoch;
  return epoch;
}

template <int kType>
__global__ void __launch_bounds__(kLineThreads, 2) sum_in_one_hop(const __grid_constant__ LineCall call) {
  const LineRun<ElementOf<kType>> run(call, begin_epoch(call), here());
  run.send();
  run.add_up();
}

template <int kType>
__global__ void __launch_bounds__(kTwoHopThreads, 1) sum_in_two_hops(const __grid_constant__ LineCall call) {
  const LineRun<ElementOf<kType>> run(call, begin_epoch(call), here());
  run.send_parts();
  if (run.add_up_part()) run.take_parts();
}

template <size_t... kType>
const void* find(const LineCall& call, std::index_sequence<kType...>) {
  static constexpr void (*kOneHop[])(LineCall) = {sum_in_one_hop<kType>...};
  static constexpr void (*kTwoHops[])(LineCall) = {sum_in_two_hops<kType>...};
  const auto type = static_cast<int>(call.dtype);
  return reinterpret_cast<const void*>(call.n_hops == 1 ? kOneHop[type] : kTwoHops[type]);
}

}  // namespace lines

using namespace lines;

const void* line_kernel(const LineCall& call) {
  return find(call, std::make_index_sequence<kDataTypes>());
}

}  // namespace tutti::cuda
