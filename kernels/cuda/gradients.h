// The arguments of the kernels for gradients: elements that are narrowed, widened, quantised or inspected (SpanCall),
// and matrices that are compressed (FactorCall).
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tutti::cuda {

enum class SpanStep : uint8_t {
  kNarrow,     // `wide` to `small`, rounding 32 bits to nearest even
  kWiden,      // and back
  kNonFinite,  // *to = max(*to, ~i) for each index i of an element of type `wide` that is Inf or NaN
  kDigest,     // *to += a hash of the bytes and their places
  kQuantise,   // floats plus their errors to blocks; the errors become what that loses (kernels.h)
  kDequantise  // and back
};

struct SpanItem {
  const void* from = nullptr;  // any alignment, like the others, for kDigest, kQuantise and kDequantise
  void* to = nullptr;          // a uint64_t, or elements
  uint64_t elems = 0;          // bytes for kDigest
  void* errors = nullptr;      // floats, for kQuantise; may be null
};

inline constexpr uint32_t kGradientThreads = 256;  // of a block

inline constexpr int kMaxSpans = 120;
struct SpanCall {
  SpanItem items[kMaxSpans];
  int n_items = 0;
  SpanStep step = SpanStep::kNarrow;
  DataType wide = DataType::kFloat32;   // kFloat32 or kFloat64; for kNonFinite also 16-bit floats
  DataType small = DataType::kFloat16;  // or kBfloat16; for quantised blocks kInt8 or kFloat8e4m3
  uint32_t block_elems = 0;             // of quantised blocks: 64, 128, 192 or 256
};

// The steps of PowerSGD between all-reduces.
enum class FactorPart : uint8_t {
  kProject,         // error += data; P = error * start
  kOrthonormalise,  // P's columns, by Gram-Schmidt; those that depend on others become zero
  kFindQ,           // Q = error^T * P
  kRebuild,         // data = P * Q^T; error -= data, or 0 where that is not finite
  kKeepQ            // start = Q's columns, normalised, except those that are zero or not finite
};

// Matrices by rows; P (rows x rank) and Q (columns x rank) by columns.
struct FactorItem {
  float *data = nullptr, *error = nullptr, *start = nullptr, *p = nullptr, *q = nullptr;
  uint64_t rows = 0, columns = 0;
  uint32_t rank = 0;
};

inline constexpr int kMaxFactors = 60;
struct FactorCall {
  FactorItem items[kMaxFactors];
  int n_items = 0;
  FactorPart part = FactorPart::kProject;
};

static_assert(sizeof(SpanCall) <= 4096 && sizeof(FactorCall) <= 4096, "the argument of a kernel");

// How many blocks of kGradientThreads there is work for.
uint64_t tiles_of(const SpanCall& call);
uint64_t tiles_of(const FactorCall& call);

}  // namespace tutti::cuda
