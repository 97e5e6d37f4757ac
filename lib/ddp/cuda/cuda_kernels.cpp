#include "ddp/cuda/cuda_kernels.h"

#include "ddp/tensor.h"

namespace tutti::ddp {

using cuda::FactorCall;
using cuda::FactorPart;
using cuda::SpanCall;
using cuda::SpanStep;

// Empties the call.
template <class Call>
Result<void> CudaKernels::launch(Call& call) {
  auto ran = run_tiles(port_, call, most_blocks_, stream_);
  call.n_items = 0;
  return ran;
}

Result<void> CudaKernels::convert(SpanStep step, const Span& wide, const Span& small) {
  SpanCall call;
  call.step = step;
  call.wide = static_cast<DataType>(wide.type);
  call.small = static_cast<DataType>(small.type);
  const bool narrows = step == SpanStep::kNarrow;
  call.items[call.n_items++] = {narrows ? wide.at : small.at, narrows ? small.at : wide.at, wide.count};
  return launch(call);
}

Result<void> CudaKernels::look(Look what, const std::vector<Span>& spans, uint64_t* found) {
  SpanCall call;
  call.step = what == Look::kNonFinite ? SpanStep::kNonFinite : SpanStep::kDigest;
  for (const Span& span : spans) {
    const auto type = static_cast<DataType>(span.type);
    // A launch looks at one type; to a digest all are bytes.
    if (call.n_items == cuda::kMaxSpans || (what == Look::kNonFinite && call.wide != type)) TUTTI_TRY(launch(call));
    call.wide = type;
    const uint64_t elems = what == Look::kNonFinite ? span.count : span.count * element_bytes(span.type);
    call.items[call.n_items++] = {span.at, found++, elems};
  }
  return launch(call);
}

Result<void> CudaKernels::factor_part(FactorPart part, const std::vector<Factors>& matrices) {
  FactorCall call;
  call.part = part;
  for (const Factors& m : matrices) {
    if (call.n_items == cuda::kMaxFactors) TUTTI_TRY(launch(call));
    call.items[call.n_items++] = {m.data, m.error, m.start, m.p, m.q, m.rows, m.columns, static_cast<uint32_t>(m.rank)};
  }
  return launch(call);
}

Result<void> CudaKernels::factor(FactorStep step, const std::vector<Factors>& matrices) {
  if (step == FactorStep::kProject) return factor_part(FactorPart::kProject, matrices);
  const bool finds = step == FactorStep::kFindQ;
  TUTTI_TRY(factor_part(finds ? FactorPart::kOrthonormalise : FactorPart::kRebuild, matrices));
  return factor_part(finds ? FactorPart::kFindQ : FactorPart::kKeepQ, matrices);
}

}  // namespace tutti::ddp
