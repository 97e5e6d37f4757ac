// This header: launches kernels on gradients in a stream, each with as many items as a kernel's argument holds.
#pragma once

#include <vector>

#include "cuda/port.h"
#include "ddp/device.h"
#include "ddp/tensor.h"

namespace tutti::ddp {

class CudaKernels {
 public:
  CudaKernels(cuda::Port& port, uint32_t most_blocks, cuda::StreamRef stream)
      : port_(port), most_blocks_(most_blocks), stream_(stream) {}

  Result<void> convert(const Span& from, const Span& to) {
    const bool narrows = element_bytes(to.type) == sizeof(uint16_t);
    cuda::SpanCall call;
    call.step = narrows ? cuda::SpanStep::kNarrow : cuda::SpanStep::kWiden;
    call.wide = static_cast<DataType>(narrows ? from.type : to.type);
    call.small = static_cast<DataType>(narrows ? to.type : from.type);
    call.items[call.n_items++] = {from.at, to.at, from.count};
    return launch(call);
  }

  // `found` is on the device and zero; for kNonFinite the kernel stores the complement of the index.
  Result<void> look(Look what, const std::vector<Span>& spans, uint64_t* found) {
    cuda::SpanCall call;
    call.step = what == Look::kNonFinite ? cuda::SpanStep::kNonFinite : cuda::SpanStep::kDigest;
    for (const Span& span : spans) {
      const auto type = static_cast<DataType>(span.type);
      // A launch handles one type; a digest sees only bytes.
      if (call.n_items == cuda::kMaxSpans || (what == Look::kNonFinite && call.wide != type)) TUTTI_TRY(launch(call));
      call.wide = type;
      const uint64_t elems = what == Look::kNonFinite ? span.count : span.count * element_bytes(span.type);
      call.items[call.n_items++] = {span.at, found++, elems};
    }
    return launch(call);
  }

  Result<void> factor(FactorStep step, const std::vector<Factors>& matrices) {
    if (step == FactorStep::kProject) return factor_part(cuda::FactorPart::kProject, matrices);
    const bool finds = step == FactorStep::kFindQ;
    TUTTI_TRY(factor_part(finds ? cuda::FactorPart::kOrthonormalise : cuda::FactorPart::kRebuild, matrices));
    return factor_part(finds ? cuda::FactorPart::kFindQ : cuda::FactorPart::kKeepQ, matrices);
  }

 private:
  Result<void> factor_part(cuda::FactorPart part, const std::vector<Factors>& matrices) {
    cuda::FactorCall call;
    call.part = part;
    for (const Factors& m : matrices) {
      if (call.n_items == cuda::kMaxFactors) TUTTI_TRY(launch(call));
      call.items[call.n_items++] = {m.data, m.error, m.start,   m.p,
                                    m.q,    m.rows,  m.columns, static_cast<uint32_t>(m.rank)};
    }
    return launch(call);
  }

  // Launches the call, then empties it.
  template <class Call>
  Result<void> launch(Call& call) {
    auto ran = run_tiles(port_, call, most_blocks_, stream_);
    call.n_items = 0;
    return ran;
  }

  cuda::Port& port_;
  const uint32_t most_blocks_;
  const cuda::StreamRef stream_;
};

}  // namespace tutti::ddp
