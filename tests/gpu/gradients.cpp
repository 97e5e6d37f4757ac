// Trains a linear model on CUDA memory through tutti/ddp.h, and the same model in host memory: compares the gradients
// after each step, for every built-in compression. -n: steps. Takes the perf tools' flags for ranks and devices; with
// --device host both are in host memory. The last line on stdout is JSON.
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "device.h"
#include "launch.h"
#include "options.h"
#include "team.h"
#include "tutti/ddp.h"
#include "types.h"

namespace tutti::perf {
namespace {

constexpr Collective kTool = {.tool = "gradients", .call = "training steps", .layout = same_size};
constexpr size_t kIn = 256, kOut = 192, kSamples = 32;

struct Kind {
  const char* name;
  tuttiDdpCompression_t compression;
  double tolerance;  // relative to the largest gradient
};
constexpr std::array kKinds = {Kind{"average", tuttiDdpAverage, 1e-6},   Kind{"float16", tuttiDdpFloat16, 1e-6},
                               Kind{"bfloat16", tuttiDdpBfloat16, 1e-6}, Kind{"int8", tuttiDdpInt8, 1e-6},
                               Kind{"f8e4m3", tuttiDdpFloat8e4m3, 1e-6}, Kind{"PowerSGD", tuttiDdpPowerSgd, 1e-3}};

Status check(tuttiResult_t result, const char* call) {
  if (result == tuttiSuccess) return {};
  return Error{text("%s: %s", call, tuttiDdpGetLastError())};
}

// One side's parameters, and an averager of their gradients.
class Side {
 public:
  Side(tuttiComm_t comm, int device) : comm_(comm), device_(device) {}
  ~Side() {
    if (ddp_ != nullptr) static_cast<void>(tuttiDdpDestroy(ddp_));
    for (void* at : {data_[0], data_[1]}) {
      if (device_ >= 0)
        device::release(at);
      else
        free(at);
    }
    if (stream_ != nullptr) device::destroy(stream_);
  }

  Status create(tuttiDdpCompression_t compression, const std::vector<float>* values) {
    tuttiDdpTensor_t params[2] = {};
    for (size_t p = 0; p < 2; p++) {
      const size_t bytes = values[p].size() * sizeof(float);
      if (device_ < 0) data_[p] = malloc(bytes);
      if (Status s = device_ < 0 ? Status() : device::allocate(bytes, &data_[p]); !s) return s;
      if (Status s = move(data_[p], values[p].data(), bytes); !s) return s;
      params[p] = {.name = p == 0 ? "weights" : "bias",
                   .data = data_[p],
                   .grad = nullptr,
                   .count = values[p].size(),
                   .datatype = tuttiFloat32,
                   .gradDatatype = tuttiFloat32,
                   .ndim = p == 0 ? 2 : 1,
                   .shape = {kOut, p == 0 ? kIn : 0},
                   .device = device_};
    }
    params[1].shape[0] = kOut;
    tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
    config.compression = compression;
    config.powerSgdStartStep = 0;
    config.firstBucketBytes = 64;  // one bucket for each parameter
    config.bucketCapBytes = 64;
    config.checkEvery = 3;
    if (Status s = check(tuttiDdpCreate(&ddp_, comm_, params, 2, nullptr, 0, &config), "tuttiDdpCreate"); !s) return s;
    if (device_ < 0) return {};
    if (Status s = device::create_stream(&stream_); !s) return s;
    return check(tuttiDdpSetStream(ddp_, stream_), "tuttiDdpSetStream");
  }

  // Averages the gradients, in place.
  Status step(std::vector<float>* gradients) {
    if (Status s = check(tuttiDdpBegin(ddp_), "tuttiDdpBegin"); !s) return s;
    for (size_t p = 2; p-- > 0;) {
      void* at = nullptr;
      if (Status s = check(tuttiDdpGradient(ddp_, p, &at), "tuttiDdpGradient"); !s) return s;
      if (Status s = move(at, gradients[p].data(), gradients[p].size() * sizeof(float)); !s) return s;
      if (Status s = check(tuttiDdpMarkReady(ddp_, p), "tuttiDdpMarkReady"); !s) return s;
    }
    if (Status s = check(tuttiDdpWait(ddp_), "tuttiDdpWait"); !s) return s;
    if (Status s = device_ < 0 ? Status() : device::synchronize(stream_); !s) return s;
    for (size_t p = 0; p < 2; p++) {
      void* at = nullptr;
      if (Status s = check(tuttiDdpGradient(ddp_, p, &at), "tuttiDdpGradient"); !s) return s;
      if (Status s = move(gradients[p].data(), at, gradients[p].size() * sizeof(float)); !s) return s;
    }
    return {};
  }

  // The parameters after creation.
  Status read(std::vector<float>* values) const {
    for (size_t p = 0; p < 2; p++)
      if (Status s = move(values[p].data(), data_[p], values[p].size() * sizeof(float)); !s) return s;
    return {};
  }

 private:
  Status move(void* to, const void* from, size_t bytes) const {
    if (device_ >= 0) return device::copy(to, from, bytes);
    memcpy(to, from, bytes);
    return {};
  }

  const tuttiComm_t comm_;
  const int device_;
  tuttiDdp_t ddp_ = nullptr;
  tuttiStream_t stream_ = nullptr;
  void* data_[2] = {};
};

class Training {
 public:
  explicit Training(int rank) : random_(static_cast<unsigned>(rank) + 1) {
    inputs_ = numbers(kSamples * kIn);
    wanted_ = numbers(kSamples * kOut);
    values[0] = numbers(kOut * kIn);
    values[1] = numbers(kOut);
  }

  // Computes this rank's gradients; returns the mean square error.
  double backward(std::vector<float>* gradients) const {
    gradients[0].assign(kOut * kIn, 0);
    gradients[1].assign(kOut, 0);
    double loss = 0;
    for (size_t s = 0; s < kSamples; s++)
      for (size_t o = 0; o < kOut; o++) {
        float miss = values[1][o] - wanted_[s * kOut + o];
        for (size_t i = 0; i < kIn; i++) miss += values[0][o * kIn + i] * inputs_[s * kIn + i];
        loss += static_cast<double>(miss) * static_cast<double>(miss) / (kSamples * kOut);
        gradients[1][o] += miss / kSamples;
        for (size_t i = 0; i < kIn; i++) gradients[0][o * kIn + i] += miss * inputs_[s * kIn + i] / kSamples;
      }
    return loss;
  }

  void update(const std::vector<float>* gradients) {
    constexpr float kRate = 0.01f;
    for (size_t p = 0; p < 2; p++)
      for (size_t i = 0; i < values[p].size(); i++) values[p][i] -= kRate * gradients[p][i];
  }

  std::vector<float> values[2];  // weights, bias

 private:
  std::vector<float> numbers(size_t n) {
    std::vector<float> out(n);
    for (float& x : out) x = static_cast<float>(random_() % 2001) / 1000 - 1;
    return out;
  }

  std::mt19937 random_;
  std::vector<float> inputs_, wanted_;
};

size_t count_wrong(const std::vector<float>& a, const std::vector<float>& b, double tolerance) {
  double largest = 0;
  size_t wrong = 0;
  for (const float x : b) largest = std::max(largest, std::abs(static_cast<double>(x)));
  for (size_t i = 0; i < a.size(); i++)
    wrong += !(std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])) <= tolerance * largest);
  return wrong;
}

Status train(const Kind& kind, long long steps, tuttiComm_t host, Team& team) {
  Training training(team.rank());
  Side ours(team.comm(), team.device()), theirs(host, TUTTI_DDP_HOST);
  long long wrong = 0;
  std::vector<float> read[2] = {training.values[0], training.values[1]};
  if (Status s = ours.create(kind.compression, training.values); !s) return s;
  if (Status s = theirs.create(kind.compression, training.values); !s) return s;
  if (Status s = theirs.read(training.values); !s) return s;
  if (Status s = ours.read(read); !s) return s;
  for (size_t p = 0; p < 2; p++) wrong += read[p] != training.values[p];
  double first = 0, last = 0;
  for (long long step = 0; step < steps; step++) {
    std::vector<float> gradients[2], expected[2];
    last = training.backward(gradients);
    if (step == 0) first = last;
    for (size_t p = 0; p < 2; p++) expected[p] = gradients[p];
    if (Status s = ours.step(gradients); !s) return s;
    if (Status s = theirs.step(expected); !s) return s;
    for (size_t p = 0; p < 2; p++)
      wrong += static_cast<long long>(count_wrong(gradients[p], expected[p], kind.tolerance));
    training.update(expected);
  }
  wrong += steps > 1 && !(last < first);
  if (Status s = team.sum(&wrong); !s) return s;
  if (team.rank() == 0)
    printf("{\"gradients\": \"%s\", \"ranks\": %d, \"steps\": %lld, \"loss\": [%.4f, %.4f], \"wrong\": %lld}\n",
           kind.name, team.n_ranks(), steps, first, last, wrong);
  return wrong > 0 ? Status(Error{"", kExitWrongData, true}) : Status();
}

Status run(const Options& options, tuttiComm_t comm) {
  Team team;
  if (Status s = team.join(comm); !s) return s;
  if (options.device != kHostMemory)
    if (Status s = team.move_to_device(options); !s) return s;
  for (const Kind& kind : kKinds)
    if (Status s = train(kind, options.iters, comm, team); !s) return s;
  return team.leave_device();
}

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::launch_tool(argc, argv, tutti::perf::kTool, tutti::perf::run);
}
