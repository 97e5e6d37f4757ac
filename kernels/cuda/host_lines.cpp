// The CPU's twin of lines.cu.
#include <utility>

#include "kernels/cuda/run_lines.h"

namespace tutti::cuda {
namespace {

// Thread by thread: each sends its line before it waits for the others', who come to theirs in the same order.
template <int kType>
void run_all(const LineCall& call) {
  const uint64_t bytes = call.elems * dtype_bytes(call.dtype);
  for (uint32_t block = 0; block < line_blocks(bytes); block++) {
    const uint32_t epoch = call.epochs[block] + 1;
    const LineRun<ElementOf<kType>> run(call, epoch);
    for (uint32_t thread = 0; thread < kLineThreads; thread++)
      if (!run.run(block * kLineThreads + thread)) return;
    call.epochs[block] = epoch;
  }
}

template <size_t... kType>
void dispatch(const LineCall& call, std::index_sequence<kType...>) {
  static constexpr void (*kRuns[])(const LineCall&) = {run_all<kType>...};
  kRuns[static_cast<int>(call.dtype)](call);
}

}  // namespace

void run_lines_on_host(const LineCall& call) {
  dispatch(call, std::make_index_sequence<kDataTypes>());
}

}  // namespace tutti::cuda
