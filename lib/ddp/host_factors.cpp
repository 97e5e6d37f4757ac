// PowerSGD's arithmetic on a CPU.
#include <algorithm>
#include <cmath>

#include "device.h"

namespace tutti::ddp {
namespace {

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

}  // namespace

void factor_on_host(FactorStep step, const Factors& matrix) {
  switch (step) {
    case FactorStep::kProject: return project(matrix);
    case FactorStep::kFindQ: return find_q(matrix);
    case FactorStep::kRebuild: return rebuild(matrix);
  }
}

}  // namespace tutti::ddp
