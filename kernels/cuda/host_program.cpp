// The CPU's twin of program.cu.
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/run_program.h"

namespace tutti::cuda {
namespace {

template <int kType>
void run_block(const ProgramCall& call, uint32_t block) {
  BlockRoom room;
  LaneRun<ElementOf<kType>, job_unroll(static_cast<DataType>(kType))>(call, {block, blocks_of(call), 0, 1}, &room)
      .run();
}

using RunBlock = void (*)(const ProgramCall&, uint32_t);

template <size_t... kType>
RunBlock find_block(DataType dtype, std::index_sequence<kType...>) {
  static constexpr RunBlock kBlocks[] = {run_block<kType>...};
  return kBlocks[static_cast<int>(dtype)];
}

}  // namespace

void run_program_on_host(const ProgramCall& call) {
  const RunBlock run = find_block(call.dtype, std::make_index_sequence<kDataTypes>());
  std::vector<std::thread> threads;
  for (uint32_t block = 0; block < blocks_of(call); block++) threads.emplace_back([&, block] { run(call, block); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tutti::cuda
