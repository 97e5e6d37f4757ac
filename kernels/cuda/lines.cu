// Small all-reduces between GPUs: one kernel for each data type.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/run_lines.h"

namespace tutti::cuda {
namespace {

template <int kType>
__global__ void __launch_bounds__(kLineThreads, 2) sum_lines(const __grid_constant__ LineCall call) {
  const uint32_t epoch = call.epochs[blockIdx.x] + 1;
  __syncthreads();  // all have read it
  LineRun<ElementOf<kType>>(call, epoch).run(blockIdx.x * kLineThreads + threadIdx.x);
  if (threadIdx.x == 0) call.epochs[blockIdx.x] = epoch;
}

}  // namespace

const void* line_kernel(DataType dtype) {
  static constexpr void (*kKernels[kDataTypes])(LineCall) = {
      sum_lines<0>, sum_lines<1>, sum_lines<2>, sum_lines<3>, sum_lines<4>,  sum_lines<5>,
      sum_lines<6>, sum_lines<7>, sum_lines<8>, sum_lines<9>, sum_lines<10>, sum_lines<11>};
  return reinterpret_cast<const void*>(kKernels[static_cast<int>(dtype)]);
}

}  // namespace tutti::cuda
