// The CPU's twin of gradients.cu.
#include "kernels/cuda/run_gradients.h"

namespace tutti::cuda {
namespace {

template <FactorPart kPart>
void run_blocks(const FactorCall& call, uint32_t n_blocks) {
  for (uint32_t block = 0; block < n_blocks; block++) run_factors<kPart>(call, {block, n_blocks});
}

}  // namespace

uint64_t tiles_of(const SpanCall& call) {
  uint64_t tiles = 0;
  for (int i = 0; i < call.n_items; i++) tiles += span_tiles(call, call.items[i]);
  return tiles;
}

uint64_t tiles_of(const FactorCall& call) {
  uint64_t tiles = 0;
  for (int i = 0; i < call.n_items; i++) tiles += factor_tiles(call.part, call.items[i]);
  return tiles;
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
