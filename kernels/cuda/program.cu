// The interpreter of schedules: one kernel for each data type, to be launched cooperatively, because blocks wait for
// each other.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/run_program.h"

namespace tutti::cuda {
namespace program {  // not unnamed: kernels' names must not depend on where the tree is

template <int kType>
__global__ void __launch_bounds__(kProgramThreads, 2) interpret(const __grid_constant__ ProgramCall call) {
  __shared__ BlockRoom room;
  LaneRun<ElementOf<kType>, job_unroll(static_cast<DataType>(kType))>(call, here(), &room).run();
}

}  // namespace program

using namespace program;

const void* program_kernel(DataType dtype) {
  static constexpr void (*kKernels[kDataTypes])(ProgramCall) = {
      interpret<0>, interpret<1>, interpret<2>, interpret<3>, interpret<4>,  interpret<5>,
      interpret<6>, interpret<7>, interpret<8>, interpret<9>, interpret<10>, interpret<11>};
  return reinterpret_cast<const void*>(kKernels[static_cast<int>(dtype)]);
}

}  // namespace tutti::cuda
