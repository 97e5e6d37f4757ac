#include "twins.h"

#include <thread>
#include <type_traits>
#include <vector>

#include "kernels/cuda/run_gradients.h"
#include "kernels/cuda/run_jobs.h"
#include "kernels/cuda/run_lines.h"
#include "kernels/cuda/run_program.h"

namespace tutti::cuda {
namespace {

// Calls does(type) with a constant that is the number of this data type.
template <int kType = 0, class Does>
auto with_type(DataType dtype, Does&& does) {
  if constexpr (kType + 1 < kDataTypes)
    if (static_cast<int>(dtype) != kType) return with_type<kType + 1>(dtype, does);
  return does(std::integral_constant<int, kType>());
}

template <class T, int kUnroll, bool kCopies>
void run_threads(const JobList& list) {
  const uint32_t n_blocks = tiles_of(list);
  for (uint32_t block = 0; block < n_blocks; block++)
    for (uint32_t thread = 0; thread < kJobThreads; thread++)
      run_jobs<T, kUnroll, kCopies>(list, {block, n_blocks, thread, kJobThreads});
}

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

template <FactorPart kPart>
void run_blocks(const FactorCall& call, uint32_t n_blocks) {
  for (uint32_t block = 0; block < n_blocks; block++) run_factors<kPart>(call, {block, n_blocks});
}

}  // namespace

void run_jobs_on_host(const JobList& list) {
  if (list.only_bytes) return run_threads<Plain<uint8_t>, kCopyUnroll, true>(list);
  with_type(list.dtype, [&](auto type) {
    run_threads<ElementOf<type>, job_unroll(static_cast<DataType>(type.value)), false>(list);
  });
}

void run_program_on_host(const ProgramCall& call) {
  const auto run = [&](uint32_t block) {
    with_type(call.dtype, [&](auto type) {
      constexpr int kUnroll = job_unroll(static_cast<DataType>(type.value));
      BlockRoom room;
      LaneRun<ElementOf<type>, kUnroll>(call, {block, blocks_of(call), 0, 1}, &room).run();
    });
  };
  std::vector<std::thread> threads;
  for (uint32_t block = 0; block < blocks_of(call); block++) threads.emplace_back(run, block);
  for (std::thread& thread : threads) thread.join();
}

void run_lines_on_host(const LineCall& call) {
  if (!with_type(call.dtype, [&](auto type) { return run_all<ElementOf<type>>(call); })) return;
  for (uint32_t block = 0; block < line_blocks(call); block++) call.epochs[block]++;
}

void run_spans_on_host(const SpanCall& call, uint32_t n_blocks) {
  with_span_run(call, [&](auto run) {
    for (uint32_t block = 0; block < n_blocks; block++) run_spans<decltype(run)>(call, {block, n_blocks});
  });
}

void run_factors_on_host(const FactorCall& call, uint32_t n_blocks) {
  switch (call.part) {
    case FactorPart::kProject: return run_blocks<FactorPart::kProject>(call, n_blocks);
    case FactorPart::kOrthonormalise: return run_blocks<FactorPart::kOrthonormalise>(call, n_blocks);
    case FactorPart::kFindQ: return run_blocks<FactorPart::kFindQ>(call, n_blocks);
    case FactorPart::kRebuild: return run_blocks<FactorPart::kRebuild>(call, n_blocks);
    case FactorPart::kKeepQ: return run_blocks<FactorPart::kKeepQ>(call, n_blocks);
  }
}

}  // namespace tutti::cuda
