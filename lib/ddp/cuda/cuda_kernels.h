// This header: kernels for gradients on their way into a stream, as many items at a time as their argument holds.
#pragma once

#include <vector>

#include "cuda/port.h"
#include "ddp/device.h"

namespace tutti::ddp {

class CudaKernels {
 public:
  CudaKernels(cuda::Port& port, uint32_t most_blocks, cuda::StreamRef stream)
      : port_(port), most_blocks_(most_blocks), stream_(stream) {}

  // kNarrow or kWiden.
  Result<void> convert(cuda::SpanStep step, const Span& wide, const Span& small);
  // `found` is on the device and zero; of what is looked for there, kNonFinite is the complement.
  Result<void> look(Look what, const std::vector<Span>& spans, uint64_t* found);
  Result<void> factor(FactorStep step, const std::vector<Factors>& matrices);

 private:
  Result<void> factor_part(cuda::FactorPart part, const std::vector<Factors>& matrices);
  template <class Call>
  Result<void> launch(Call& call);

  cuda::Port& port_;
  const uint32_t most_blocks_;
  const cuda::StreamRef stream_;
};

}  // namespace tutti::ddp
