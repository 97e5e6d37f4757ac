// The CPU's twin of lines.cu.
#include <utility>

#include "kernels/cuda/run_lines.h"

namespace tutti::cuda {
namespace {

// Does a step for all threads before the next step, as a GPU might; stops when `step` returns false.
template <class T, class Step>
bool for_each_thread(const LineCall& call, Step&& step) {
  const uint32_t n_blocks = line_blocks(call), n_threads = line_threads(call);
  for (uint32_t block = 0; block < n_blocks; block++)
    for (uint32_t thread = 0; thread < n_threads; thread++)
      if (!step(LineRun<T>(call, call.epochs[block] + 1, {block, n_blocks, thread, n_threads}))) return false;
  return true;
}

template <class T>
bool run_all(const LineCall& call) {
  const auto for_each = [&](auto&& step) { return for_each_thread<T>(call, step); };
  using Run = LineRun<T>;
  if (call.n_hops == 1) {
    for_each([](const Run& run) { return run.send(), true; });
    return for_each([](const Run& run) { return run.add_up(); });
  }
  for_each([](const Run& run) { return run.send_parts(), true; });
  return for_each([](const Run& run) { return run.add_up_part(); }) &&
         for_each([](const Run& run) { return run.take_parts(); });
}

template <size_t... kType>
bool dispatch(const LineCall& call, std::index_sequence<kType...>) {
  static constexpr bool (*kRuns[])(const LineCall&) = {run_all<ElementOf<kType>>...};
  return kRuns[static_cast<int>(call.dtype)](call);
}

}  // namespace

void run_lines_on_host(const LineCall& call) {
  if (!dispatch(call, std::make_index_sequence<kDataTypes>())) return;
  for (uint32_t block = 0; block < line_blocks(call); block++) call.epochs[block]++;
}

}  // namespace tutti::cuda
