// The copying and reducing kernels: one for each data type, whose operator is an argument, and one for bytes.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/run_jobs.h"

namespace tutti::cuda {
namespace jobs {  // not unnamed: kernels' names must not depend on where the tree is

template <int kType, DataType kDtype = static_cast<DataType>(kType)>
__global__ void __launch_bounds__(kJobThreads, job_blocks(kDtype)) reduce(const __grid_constant__ JobList list) {
  run_jobs<ElementOf<kType>, job_unroll(kDtype), false>(list, here());
}

__global__ void __launch_bounds__(kJobThreads, kCopyBlocks) copy(const __grid_constant__ JobList list) {
  run_jobs<Plain<uint8_t>, kCopyUnroll, true>(list, here());
}

}  // namespace jobs

using namespace jobs;

const void* copy_kernel() {
  return reinterpret_cast<const void*>(copy);
}

const void* reduce_kernel(DataType dtype) {
  static constexpr void (*kKernels[kDataTypes])(JobList) = {reduce<0>, reduce<1>, reduce<2>,  reduce<3>,
                                                            reduce<4>, reduce<5>, reduce<6>,  reduce<7>,
                                                            reduce<8>, reduce<9>, reduce<10>, reduce<11>};
  return reinterpret_cast<const void*>(kKernels[static_cast<int>(dtype)]);
}

}  // namespace tutti::cuda
