// The host's memory: everything is done when a call returns.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "agree.h"
#include "device.h"
#include "floats.h"
#include "tensor.h"

namespace tutti::ddp {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A float whose exponent bits are all set is Inf or NaN.
template <class Bits>
uint64_t first_with_all(const Span& span, Bits exponent) {
  const auto* bits = static_cast<const Bits*>(span.at);
  for (size_t i = 0; i < span.count; i++)
    if ((bits[i] & exponent) == exponent) return i;
  return kNoIndex;
}

uint64_t first_non_finite(const Span& span) {
  switch (span.type) {
    case tuttiFloat64: return first_with_all<uint64_t>(span, 0x7ff0000000000000);
    case tuttiFloat16: return first_with_all<uint16_t>(span, 0x7c00);
    case tuttiBfloat16: return first_with_all<uint16_t>(span, 0x7f80);
    default: return first_with_all<uint32_t>(span, 0x7f800000);
  }
}

// The conversion functions are template arguments, so that the loops are inlined and vectorised.
template <uint16_t (*to_small)(float), float (*from_small)(uint16_t), class Wide>
void convert_between(Wide* wide, uint16_t* small, size_t count, bool narrows) {
  if (narrows)
    for (size_t i = 0; i < count; i++) small[i] = to_small(static_cast<float>(wide[i]));
  else
    for (size_t i = 0; i < count; i++) wide[i] = from_small(small[i]);
}

// ---- PowerSGD ----

constexpr size_t kLanes = 8;  // independent partial sums, so that the loop is vectorised

float dot(const float* a, const float* b, size_t n) {
  float sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t lane = 0; lane < kLanes; lane++) sums[lane] += a[i + lane] * b[i + lane];
  for (; i < n; i++) sums[0] += a[i] * b[i];
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

void add_scaled(float* to, const float* from, float factor, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] += factor * from[i];
}

// Gram-Schmidt. A column that depends linearly on those before it becomes zero: it adds nothing.
void orthonormalise(float* columns, size_t n_columns, size_t rows) {
  for (size_t c = 0; c < n_columns; c++) {
    float* column = columns + c * rows;
    const float before = dot(column, column, rows);
    for (size_t d = 0; d < c; d++) add_scaled(column, columns + d * rows, -dot(column, columns + d * rows, rows), rows);
    const float after = dot(column, column, rows);
    const float scale = after > 1e-10f * before ? 1 / std::sqrt(after) : 0;
    for (size_t i = 0; i < rows; i++) column[i] *= scale;
  }
}

void project(const Factors& m) {
  add_scaled(m.error, m.data, 1, m.rows * m.columns);
  for (size_t i = 0; i < m.rows; i++)
    for (size_t k = 0; k < m.rank; k++)
      m.p[k * m.rows + i] = dot(m.error + i * m.columns, m.start + k * m.columns, m.columns);
}

void find_q(const Factors& m) {
  orthonormalise(m.p, m.rank, m.rows);
  std::fill_n(m.q, m.columns * m.rank, 0.0f);
  for (size_t i = 0; i < m.rows; i++)
    for (size_t k = 0; k < m.rank; k++)
      add_scaled(m.q + k * m.columns, m.error + i * m.columns, m.p[k * m.rows + i], m.columns);
}

// Normalised, lest later products overflow. A zero or non-finite column is not kept: it could never recover.
void keep_column(float* start, const float* column, size_t n) {
  const float size = dot(column, column, n);
  if (!(size > 0) || size - size != 0) return;
  for (size_t i = 0; i < n; i++) start[i] = column[i] / std::sqrt(size);
}

void rebuild(const Factors& m) {
  for (size_t i = 0; i < m.rows; i++) {
    float* row = m.data + i * m.columns;
    std::fill_n(row, m.columns, 0.0f);
    for (size_t k = 0; k < m.rank; k++) add_scaled(row, m.q + k * m.columns, m.p[k * m.rows + i], m.columns);
  }
  for (size_t i = 0; i < m.rows * m.columns; i++) {
    const float left = m.error[i] - m.data[i];
    m.error[i] = left - left == 0 ? left : 0;  // a NaN or Inf would stay in all later steps
  }
  for (size_t k = 0; k < m.rank; k++) keep_column(m.start + k * m.columns, m.q + k * m.columns, m.columns);
}

void factor_one(FactorStep step, const Factors& matrix) {
  switch (step) {
    case FactorStep::kProject: return project(matrix);
    case FactorStep::kFindQ: return find_q(matrix);
    case FactorStep::kRebuild: return rebuild(matrix);
  }
}

class HostDevice final : public Device {
 public:
  explicit HostDevice(tuttiComm_t comm) : Device(TUTTI_DDP_HOST, comm) {}

  tuttiStream_t stream(Queue) const override { return nullptr; }
  Status set_stream(tuttiStream_t) override { return {}; }

  Status allocate(void** at, size_t bytes) override { return library(tuttiMemAlloc(at, bytes)); }
  void free(void* at) override { static_cast<void>(tuttiMemFree(at)); }

  Status copy(void* to, const void* from, size_t bytes, Queue) override {
    memcpy(to, from, bytes);
    return {};
  }
  Status zero(void* at, size_t bytes) override {
    memset(at, 0, bytes);
    return {};
  }
  Status look(Look what, const std::vector<Span>& spans, Queue, uint64_t* found) override {
    for (const Span& span : spans)
      *found++ = what == Look::kNonFinite ? first_non_finite(span)
                                          : hash_bytes(span.at, span.count * element_bytes(span.type));
    return {};
  }
  Status convert(const Span& from, const Span& to) override {
    const bool narrows = element_bytes(to.type) == sizeof(uint16_t);
    const Span &wide = narrows ? from : to, &small = narrows ? to : from;
    const auto with = [&](auto* numbers) {
      auto* const bits = static_cast<uint16_t*>(small.at);
      if (small.type == tuttiFloat16)
        convert_between<to_float16, from_float16>(numbers, bits, from.count, narrows);
      else
        convert_between<to_bfloat16, from_bfloat16>(numbers, bits, from.count, narrows);
    };
    wide.type == tuttiFloat64 ? with(static_cast<double*>(wide.at)) : with(static_cast<float*>(wide.at));
    return {};
  }
  Status factor(FactorStep step, const std::vector<Factors>& matrices) override {
    for (const Factors& matrix : matrices) factor_one(step, matrix);
    return {};
  }

  Status begin_step(size_t) override {
    first_mark_ = called_ = 0;
    comm_seconds_ = 0;
    return {};
  }
  Status begin_backward() override {
    first_mark_ = now_seconds();
    return {};
  }
  Status mark_filled(size_t) override { return {}; }
  Status end_backward() override {
    called_ = now_seconds();
    return {};
  }
  Status begin_bucket(size_t) override {
    bucket_began_ = now_seconds();
    return {};
  }
  Status end_bucket(size_t) override {
    comm_seconds_ += now_seconds() - bucket_began_;
    return {};
  }
  Status end_step() override {
    const double backward = first_mark_ > 0 ? called_ - first_mark_ : 0;
    times_.add({backward, comm_seconds_, std::min(now_seconds() - called_, comm_seconds_)});
    return {};
  }

  Status synchronize() override { return {}; }
  Times times() override { return times_; }

 private:
  double first_mark_ = 0, called_ = 0, bucket_began_ = 0, comm_seconds_ = 0;
  Times times_;
};

}  // namespace

std::unique_ptr<Device> make_host_device(tuttiComm_t comm) {
  return std::make_unique<HostDevice>(comm);
}

}  // namespace tutti::ddp
