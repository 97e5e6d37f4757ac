// PowerSGD: a matrix M travels as P (rows x rank) and Q (columns x rank), M being about P Q^T. Each step is one power
// iteration that starts from the last step's Q:
//
//   P = average of M Q over the ranks;  P's columns made orthonormal;  Q = average of M^T P;  result P Q^T
//
// What this rank's M has beyond the result is added to its next gradient (error feedback).
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "device.h"
#include "hook.h"

namespace tutti::ddp {
namespace {

// Numbers in [-1, 1), the same for the same seed (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
// 2014).
void fill_at_random(float* numbers, size_t count, uint64_t seed) {
  for (size_t i = 0; i < count; i++) {
    uint64_t z = (seed += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    numbers[i] = static_cast<float>(static_cast<double>(z >> 11) * 0x1p-52 - 1);
  }
}

// How a parameter is compressed, and where its kept state lies; in elements.
struct Matrix {
  size_t rows = 0, columns = 0, rank = 0;  // rank 0: not compressed
  size_t start_at = 0, error_at = 0;       // offsets into Kept::start and error of its device
};

Matrix make_matrix(const Tensor& param, size_t rank) {
  Matrix m;
  if (param.shape.size() < 2 || param.count == 0 || param.grad_type != tuttiFloat32) return m;
  m.rows = param.shape[0];
  m.columns = param.count / m.rows;
  rank = std::min({rank, m.rows, m.columns});
  // Compress only if that saves more than half of the bytes.
  if (2 * rank * (m.rows + m.columns) < param.count) m.rank = rank;
  return m;
}

class PowerSgd : public Hook {
 public:
  PowerSgd(const tuttiDdpConfig_t& config, const std::vector<Tensor>& params)
      : start_step_(static_cast<uint64_t>(config.powerSgdStartStep)), seed_(config.powerSgdSeed), params_(params) {
    for (const Tensor& param : params)
      matrices_.push_back(make_matrix(param, static_cast<size_t>(config.powerSgdRank)));
  }

  Status prepare(Device& device, size_t bytes) override {
    Kept& kept = kept_[&device];
    if (kept.start.data() == nullptr)
      if (Status s = start(device, &kept); !s) return s;
    return kept.scratch.reserve(device, bytes);
  }

  Status run(const tuttiDdpBucket_t& bucket, Device& device, size_t* bytes) override {
    if (bucket.index == 0) step_++;
    if (bucket.datatype != tuttiFloat32 || step_ <= start_step_) return Hook::run(bucket, device, bytes);
    find_parts(bucket, kept_[&device]);
    auto* scratch = reinterpret_cast<float*>(kept_[&device].scratch.data());
    if (Status s = average_rest(scratch, device, bytes); !s) return s;
    return average_matrices(scratch, device, bytes);
  }

 private:
  struct Kept {
    Memory start, error;  // of all matrices of the device
    Memory scratch;
  };

  // Allocates the kept state of the device's matrices: the initial Q is random, the error zero.
  Status start(Device& device, Kept* kept) {
    std::vector<float> numbers;
    size_t error_count = 0;
    for (size_t i = 0; i < matrices_.size(); i++) {
      Matrix& m = matrices_[i];
      if (m.rank == 0 || params_[i].device != device.number()) continue;
      m.start_at = numbers.size();
      numbers.resize(numbers.size() + m.columns * m.rank);
      fill_at_random(&numbers[m.start_at], m.columns * m.rank, seed_ + i);
      m.error_at = error_count;
      error_count += params_[i].count;
    }
    if (numbers.empty()) return {};
    const size_t start_bytes = numbers.size() * sizeof(float);
    if (Status s = kept->start.allocate(device, start_bytes); !s) return s;
    if (Status s = kept->error.allocate(device, error_count * sizeof(float)); !s) return s;
    if (Status s = device.copy(kept->start.data(), numbers.data(), start_bytes, Queue::kOwn); !s) return s;
    return device.synchronize();
  }

  // Divides the bucket into parameters that are compressed and spans that are not.
  void find_parts(const tuttiDdpBucket_t& bucket, const Kept& kept) {
    auto* data = static_cast<float*>(bucket.data);
    auto* start = reinterpret_cast<float*>(kept.start.data());
    auto* error = reinterpret_cast<float*>(kept.error.data());
    compressed_.clear();
    rest_.clear();
    for (size_t i = 0; i < bucket.nparams; i++) {
      const Matrix& m = matrices_[bucket.params[i]];
      float* at = data + bucket.offsets[i];
      // A span includes the zero padding up to the next parameter.
      const size_t end = i + 1 < bucket.nparams ? bucket.offsets[i + 1] : bucket.count;
      if (m.rank > 0)
        compressed_.push_back(
            {at, error + m.error_at, start + m.start_at, nullptr, nullptr, m.rows, m.columns, m.rank});
      else
        rest_.push_back({at, end - bucket.offsets[i], tuttiFloat32});
    }
  }

  Status average_rest(float* packed, Device& device, size_t* bytes) {
    float* at = packed;
    for (const Span& span : rest_) {
      if (Status s = device.copy(at, span.at, span.count * sizeof(float), Queue::kOwn); !s) return s;
      at += span.count;
    }
    if (at == packed) return {};
    if (Status s = average(packed, static_cast<size_t>(at - packed), tuttiFloat32, device, bytes); !s) return s;
    at = packed;
    for (const Span& span : rest_) {
      if (Status s = device.copy(span.at, at, span.count * sizeof(float), Queue::kOwn); !s) return s;
      at += span.count;
    }
    return {};
  }

  Status average_matrices(float* all_p, Device& device, size_t* bytes) {
    if (compressed_.empty()) return {};
    size_t p_count = 0, q_count = 0;
    for (Factors& m : compressed_) m.p = all_p + std::exchange(p_count, p_count + m.rows * m.rank);
    float* all_q = all_p + p_count;
    for (Factors& m : compressed_) m.q = all_q + std::exchange(q_count, q_count + m.columns * m.rank);
    if (Status s = device.factor(FactorStep::kProject, compressed_); !s) return s;
    if (Status s = average(all_p, p_count, tuttiFloat32, device, bytes); !s) return s;
    if (Status s = device.factor(FactorStep::kFindQ, compressed_); !s) return s;
    if (Status s = average(all_q, q_count, tuttiFloat32, device, bytes); !s) return s;
    return device.factor(FactorStep::kRebuild, compressed_);
  }

  const uint64_t start_step_, seed_;
  const std::vector<Tensor>& params_;
  uint64_t step_ = 0;
  std::vector<Matrix> matrices_;  // by parameter
  std::map<Device*, Kept> kept_;
  std::vector<Factors> compressed_;
  std::vector<Span> rest_;
};

}  // namespace

std::unique_ptr<Hook> make_power_sgd(const tuttiDdpConfig_t& config, const std::vector<Tensor>& params) {
  return std::make_unique<PowerSgd>(config, params);
}

}  // namespace tutti::ddp
