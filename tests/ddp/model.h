// A model for the tests: parameters whose gradients are known functions of rank, step, parameter and element.
#pragma once

#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "comm/ranks.h"
#include "contains.h"
#include "tutti/ddp.h"

namespace tutti_test {

inline void take(Outcome& outcome, tuttiResult_t result) {
  if (outcome.code != tuttiSuccess || result == tuttiSuccess) return;
  outcome.code = result;
  outcome.message = tuttiDdpGetLastError();
}

// Small whole numbers, so that sums are exact; all ranks, steps and neighbours differ.
inline double gradient_of(int rank, int step, size_t param, size_t i) {
  return static_cast<double>((static_cast<size_t>(rank) * 7 + static_cast<size_t>(step) * 3 + param * 5 + i) % 17) - 8;
}

inline double average_of(int ranks, int step, size_t param, size_t i) {
  double sum = 0;
  for (int r = 0; r < ranks; r++) sum += gradient_of(r, step, param, i);
  return sum / ranks;
}

class Model {
 public:
  // Gradients lie in buckets, or (own_gradients) in the model's memory.
  explicit Model(const std::vector<size_t>& counts, bool own_gradients = false) : own_(own_gradients) {
    for (size_t i = 0; i < counts.size(); i++) {
      names_.push_back("layer" + std::to_string(i));
      data_.emplace_back(counts[i], 0.0f);
      grads_.emplace_back(counts[i], 0.0f);
      tensors_.push_back({.name = names_[i].c_str(),
                          .data = data_[i].data(),
                          .grad = own_gradients ? grads_[i].data() : nullptr,
                          .count = counts[i],
                          .datatype = tuttiFloat32,
                          .gradDatatype = tuttiFloat32,
                          .ndim = 0,
                          .shape = {},
                          .device = TUTTI_DDP_HOST});
    }
  }

  tuttiResult_t create(tuttiComm_t comm, const tuttiDdpConfig_t* config = nullptr) {
    return tuttiDdpCreate(&ddp, comm, tensors_.data(), tensors_.size(), nullptr, 0, config);
  }

  size_t size() const { return tensors_.size(); }
  tuttiDdpTensor_t& tensor(size_t i) { return tensors_[i]; }
  std::vector<float>& data(size_t i) { return data_[i]; }

  float* grad(size_t i) {
    void* at = nullptr;
    if (tuttiDdpGradient(ddp, i, &at) != tuttiSuccess) abort();
    return static_cast<float*>(at);
  }

  void fill(int rank, int step, size_t param, bool add = false) {
    float* at = grad(param);
    for (size_t i = 0; i < tensors_[param].count; i++)
      at[i] = static_cast<float>((add ? at[i] : 0) + gradient_of(rank, step, param, i));
  }

  // Elements that are not `expected(param, i)`.
  template <class Expected>
  size_t wrong(size_t param, Expected&& expected) {
    size_t n = 0;
    const float* at = grad(param);
    for (size_t i = 0; i < tensors_[param].count; i++) n += !(std::abs(at[i] - expected(param, i)) < 1e-5);
    return n;
  }
  size_t wrong_averages(int ranks, int step) {
    size_t n = 0;
    for (size_t p = 0; p < size(); p++)
      n += wrong(p, [&](size_t param, size_t i) { return average_of(ranks, step, param, i); });
    return n;
  }

  // A step in which the gradients become ready in reverse order.
  void step(int rank, int number, Outcome& outcome) {
    take(outcome, tuttiDdpBegin(ddp));
    for (size_t p = size(); p-- > 0;) {
      fill(rank, number, p);
      take(outcome, tuttiDdpMarkReady(ddp, p));
    }
    take(outcome, tuttiDdpWait(ddp));
  }

  tuttiDdp_t ddp = nullptr;

 private:
  const bool own_;
  std::deque<std::string> names_;
  std::deque<std::vector<float>> data_, grads_;
  std::vector<tuttiDdpTensor_t> tensors_;
};

// Runs body(rank, comm, outcome) on n threads and requires success without a wrong element.
inline void on_ranks(int n, const std::function<void(int, tuttiComm_t, Outcome&)>& body) {
  require_success(run_threads(n, nullptr, body));
}

// The same, but all ranks have to end with this code and a sentence that has all these parts.
inline void require_error(int n, tuttiResult_t code, const std::vector<std::string>& parts,
                          const std::function<void(int, tuttiComm_t, Outcome&)>& body) {
  const auto outcomes = run_threads(n, nullptr, body);
  for (size_t r = 0; r < outcomes.size(); r++) {
    INFO("rank " << r << ": " << outcomes[r].message);
    CHECK(outcomes[r].code == code);
    CHECK(outcomes[r].wrong == 0);
    for (const std::string& part : parts) {
      INFO("has to have: " << part);
      CHECK(contains(outcomes[r].message, part));
    }
  }
}

// Ranks 0 and 2, whose rank 1 died.
inline void check_survivors(const std::vector<Outcome>& outcomes) {
  for (const size_t r : {0, 2}) {
    INFO(outcomes[r].message);
    CHECK(outcomes[r].code == tuttiRemoteError);
    CHECK(contains(outcomes[r].message, "rank 1"));
    CHECK(outcomes[r].wrong == 0);
  }
}

inline tuttiDdpConfig_t small_buckets() {
  tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
  config.firstBucketBytes = 256;
  config.bucketCapBytes = 1024;
  return config;
}

}  // namespace tutti_test
