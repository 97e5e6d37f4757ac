// PowerSGD: a matrix M travels as P (rows x rank) and Q (columns x rank), M being about P Q^T. One step of a power
// iteration, warm from the last step's Q:
//
//   P = average of M Q over the ranks;  P's columns made orthonormal;  Q = average of M^T P;  result P Q^T
//
// What the result lacks of this rank's M is added to its next gradient (error feedback).
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "hook.h"
#include "memory.h"

namespace tutti::ddp {
namespace {

constexpr size_t kLanes = 8;  // sums side by side, so that they become vector code

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

// Gram-Schmidt. A column that depends on those before it becomes zero: it has nothing to add.
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

// Numbers in [-1, 1), the same for the same seed (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
// 2014).
void fill_at_random(std::vector<float>& numbers, uint64_t seed) {
  for (float& x : numbers) {
    uint64_t z = (seed += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    x = static_cast<float>(static_cast<double>(z >> 11) * 0x1p-52 - 1);
  }
}

// What is kept for a parameter that is compressed. Matrices are stored by rows, P and Q by columns.
struct Matrix {
  size_t rows = 0, columns = 0, rank = 0;  // rank 0: not compressed
  std::vector<float> q;
  std::vector<float> error;
};

class PowerSgd : public Hook {
 public:
  PowerSgd(const tuttiDdpConfig_t& config, const std::vector<Tensor>& params)
      : start_step_(static_cast<uint64_t>(config.powerSgdStartStep)) {
    for (size_t i = 0; i < params.size(); i++)
      matrices_.push_back(make_matrix(params[i], static_cast<size_t>(config.powerSgdRank), config.powerSgdSeed + i));
  }

  Status run(const tuttiDdpBucket_t& bucket, tuttiComm_t comm, size_t* bytes) override {
    if (bucket.index == 0) step_++;
    if (bucket.datatype != tuttiFloat32 || step_ <= start_step_)
      return average(bucket.data, bucket.count, bucket.datatype, comm, bytes);
    find_items(bucket);
    if (Status s = average_rest(comm, bytes); !s) return s;
    return average_matrices(comm, bytes);
  }

 private:
  // A parameter of the bucket at hand.
  struct Item {
    Matrix* matrix;
    float* data;
    size_t count;
    float *p, *q;
  };

  static Matrix make_matrix(const Tensor& param, size_t rank, uint64_t seed) {
    Matrix m;
    if (param.shape.size() < 2 || param.count == 0) return m;
    m.rows = param.shape[0];
    m.columns = param.count / m.rows;
    rank = std::min({rank, m.rows, m.columns});
    // Below half the bytes it is worth the work.
    if (2 * rank * (m.rows + m.columns) >= param.count) return m;
    m.rank = rank;
    m.q.resize(m.columns * rank);
    m.error.resize(param.count);
    fill_at_random(m.q, seed);
    return m;
  }

  void find_items(const tuttiDdpBucket_t& bucket) {
    auto* data = static_cast<float*>(bucket.data);
    compressed_.clear();
    rest_.clear();
    for (size_t i = 0; i < bucket.nparams; i++) {
      Matrix& matrix = matrices_[bucket.params[i]];
      // Padding up to the next parameter is averaged along; it is zero.
      const size_t end = i + 1 < bucket.nparams ? bucket.offsets[i + 1] : bucket.count;
      (matrix.rank > 0 ? compressed_ : rest_)
          .push_back({&matrix, data + bucket.offsets[i], end - bucket.offsets[i], nullptr, nullptr});
    }
  }

  Status average_rest(tuttiComm_t comm, size_t* bytes) {
    size_t count = 0;
    for (const Item& item : rest_) count += item.count;
    if (count == 0) return {};
    if (Status s = scratch_.reserve(count * sizeof(float)); !s) return s;
    auto* packed = reinterpret_cast<float*>(scratch_.data());
    float* at = packed;
    for (const Item& item : rest_) at = std::copy_n(item.data, item.count, at);
    if (Status s = average(packed, count, tuttiFloat32, comm, bytes); !s) return s;
    at = packed;
    for (const Item& item : rest_) {
      std::copy_n(at, item.count, item.data);
      at += item.count;
    }
    return {};
  }

  Status average_matrices(tuttiComm_t comm, size_t* bytes) {
    if (compressed_.empty()) return {};
    size_t p_count = 0, q_count = 0;
    for (const Item& item : compressed_) {
      p_count += item.matrix->rows * item.matrix->rank;
      q_count += item.matrix->q.size();
    }
    if (Status s = scratch_.reserve((p_count + q_count) * sizeof(float)); !s) return s;
    auto* all_p = reinterpret_cast<float*>(scratch_.data());
    float *p = all_p, *q = all_p + p_count, *all_q = q;
    for (Item& item : compressed_) {
      item.p = p;
      item.q = q;
      p += item.matrix->rows * item.matrix->rank;
      q += item.matrix->q.size();
      add_error_and_project(item);
    }
    if (Status s = average(all_p, p_count, tuttiFloat32, comm, bytes); !s) return s;
    for (const Item& item : compressed_) find_q(item);
    if (Status s = average(all_q, q_count, tuttiFloat32, comm, bytes); !s) return s;
    for (const Item& item : compressed_) rebuild(item);
    return {};
  }

  // M += error; P = M Q. The error keeps M until the result is known.
  static void add_error_and_project(const Item& item) {
    Matrix& m = *item.matrix;
    add_scaled(m.error.data(), item.data, 1, m.error.size());
    for (size_t i = 0; i < m.rows; i++)
      for (size_t k = 0; k < m.rank; k++)
        item.p[k * m.rows + i] = dot(&m.error[i * m.columns], &m.q[k * m.columns], m.columns);
  }

  static void find_q(const Item& item) {
    const Matrix& m = *item.matrix;
    orthonormalise(item.p, m.rank, m.rows);
    std::fill_n(item.q, m.q.size(), 0.0f);
    for (size_t i = 0; i < m.rows; i++)
      for (size_t k = 0; k < m.rank; k++)
        add_scaled(item.q + k * m.columns, &m.error[i * m.columns], item.p[k * m.rows + i], m.columns);
  }

  static void rebuild(const Item& item) {
    Matrix& m = *item.matrix;
    for (size_t i = 0; i < m.rows; i++) {
      float* row = item.data + i * m.columns;
      std::fill_n(row, m.columns, 0.0f);
      for (size_t k = 0; k < m.rank; k++) add_scaled(row, item.q + k * m.columns, item.p[k * m.rows + i], m.columns);
    }
    add_scaled(m.error.data(), item.data, -1, m.error.size());
    // The next step starts from here, unless there is nothing to start from.
    if (dot(item.q, item.q, m.q.size()) > 0) std::copy_n(item.q, m.q.size(), m.q.data());
  }

  const uint64_t start_step_;
  uint64_t step_ = 0;
  std::vector<Matrix> matrices_;  // by parameter
  std::vector<Item> compressed_, rest_;
  Memory scratch_;
};

}  // namespace

std::unique_ptr<Hook> make_power_sgd(const tuttiDdpConfig_t& config, const std::vector<Tensor>& params) {
  return std::make_unique<PowerSgd>(config, params);
}

}  // namespace tutti::ddp
