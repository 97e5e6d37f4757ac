// Gradients on a GPU that is made up (cuda/fake.h), against the same model in host memory, bit by bit.
#include <limits>

#include "cuda/gpu_ranks.h"
#include "ddp/model.h"

using namespace tutti_test;

namespace {

struct Spec {
  size_t count;
  tuttiDataType_t type = tuttiFloat32;
  size_t rows = 0;  // 0: a vector
  bool on_host = false;
};
const std::vector<Spec> kFloats = {{3}, {700}, {0}, {1}, {64}, {17}, {300}, {5}};
const std::vector<Spec> kTypes = {{100, tuttiFloat64}, {33}, {0, tuttiFloat64}, {257, tuttiBfloat16}, {9, tuttiFloat16},
                                  {65, tuttiBfloat16}};

// One rank's model, twice: on the GPU, where a stream writes the gradients, and in host memory.
class Twins {
 public:
  Twins(FakePort& port, const std::vector<Spec>& specs, bool own, int rank, tuttiComm_t gpu, tuttiComm_t host)
      : stream(port), specs_(specs), rank_(rank), port_(port) {
    comms_[kGpu] = gpu;
    comms_[kHost] = host;
    int device = -1;
    tuttiCommCuDevice(gpu, &device);
    for (const int side : {kGpu, kHost})
      for (const Spec& spec : specs) {
        const size_t bytes = spec.count * kTypeBytes[spec.type];
        data_[side].emplace_back(bytes, static_cast<char>(rank));
        grads_[side].emplace_back(bytes);
        tensors_[side].push_back({.name = nullptr,
                                  .data = data_[side].back().data(),
                                  .grad = own ? grads_[side].back().data() : nullptr,
                                  .count = spec.count,
                                  .datatype = spec.type,
                                  .gradDatatype = spec.type,
                                  .ndim = spec.rows > 0 ? 2 : 0,
                                  .shape = {spec.rows, spec.rows > 0 ? spec.count / spec.rows : 0},
                                  .device = side == kHost || spec.on_host ? TUTTI_DDP_HOST : device});
      }
  }
  ~Twins() {
    for (const int side : {kGpu, kHost})
      if (ddp[side] != nullptr) tuttiDdpDestroy(ddp[side]);
  }

  void create(const tuttiDdpConfig_t& config, Outcome& o) {
    for (const int side : {kGpu, kHost})
      take(o, tuttiDdpCreate(&ddp[side], comms_[side], tensors_[side].data(), specs_.size(), nullptr, 0, &config));
    take(o, tuttiDdpSetStream(ddp[kGpu], stream));
    for (size_t p = 0; p < specs_.size(); p++) o.wrong += data_[kGpu][p] != data_[kHost][p];
  }

  char* grad(int side, size_t param) {
    void* at = nullptr;
    tuttiDdpGradient(ddp[side], param, &at);
    return static_cast<char*>(at);
  }

  char* data(size_t param) { return data_[kGpu][param].data(); }

  // Writes the gradient of a parameter on both sides; on the GPU once the stream gets there.
  void fill(size_t param, int step) {
    const Spec& spec = specs_[param];
    const size_t bytes = spec.count * kTypeBytes[spec.type];
    auto& fresh = staged_.emplace_back(
        random_input(spec.count, spec.type, static_cast<uint32_t>(rank_ * 1000 + step * 50 + static_cast<int>(param))));
    if (sides.back() == kHost) memcpy(grad(kHost, param), fresh.data(), bytes);
    if (sides.front() != kGpu) return;
    if (spec.on_host)
      memcpy(grad(kGpu, param), fresh.data(), bytes);
    else
      (void)port_.copy(grad(kGpu, param), fresh.data(), bytes, stream.ref());
  }

  // `uses`: which parameters have a gradient.
  template <class Uses>
  void step(int number, Outcome& o, Uses&& uses) {
    for (const int side : sides) take(o, tuttiDdpBegin(ddp[side]));
    for (size_t p = specs_.size(); p-- > 0;) {
      const bool is_used = uses(p);
      if (is_used) fill(p, number);
      for (const int side : sides)
        take(o, is_used ? tuttiDdpMarkReady(ddp[side], p) : tuttiDdpMarkUnused(ddp[side], p));
    }
    for (const int side : sides) take(o, tuttiDdpWait(ddp[side]));
    stream.synchronize();
  }
  void step(int number, Outcome& o) {
    step(number, o, [](size_t) { return true; });
  }

  size_t wrong() {
    size_t n = 0;
    for (size_t p = 0; p < specs_.size(); p++)
      n += memcmp(grad(kGpu, p), grad(kHost, p), specs_[p].count * kTypeBytes[specs_[p].type]) != 0;
    return n;
  }

  static constexpr int kGpu = 0, kHost = 1;
  std::vector<int> sides = {kGpu, kHost};  // the sides that take steps
  GpuStream stream;
  tuttiDdp_t ddp[2] = {};

 private:
  const std::vector<Spec> specs_;
  const int rank_;
  FakePort& port_;
  tuttiComm_t comms_[2] = {};
  std::deque<std::vector<char>> data_[2], grads_[2], staged_;
  std::vector<tuttiDdpTensor_t> tensors_[2];
};

// Steps of the same model on both sides, with equal bits after each.
void compare_steps(Seats seats, int n, const std::vector<Spec>& specs, bool own, const tuttiDdpConfig_t& config) {
  FakePort port(8);
  require_success(run_gpu_threads(port, n, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
    Twins twins(port, specs, own, r, gpu, host);
    twins.create(config, o);
    for (int step = 0; step < 4 && o.code == tuttiSuccess; step++) {
      twins.step(step, o);
      o.wrong += twins.wrong();
    }
    tuttiDdpStats_t stats[2] = {TUTTI_DDP_STATS_INITIALIZER, TUTTI_DDP_STATS_INITIALIZER};
    for (int side = 0; side < 2; side++) take(o, tuttiDdpGetStats(twins.ddp[side], &stats[side]));
    o.wrong += stats[0].steps != 4 || stats[0].rebuilds != 1 || stats[0].buckets < 3 || stats[0].reducedBytes == 0;
    o.wrong += !(stats[0].totalCommSeconds > 0) || !(stats[0].totalBackwardSeconds > 0);
    o.wrong += stats[0].overlapPercent < 0 || stats[0].overlapPercent > 100;
  }));
}

// How far a matrix on the GPU is from the host's, relative to the host's norm; -1 where that is zero.
double miss_of(Twins& twins, size_t param, size_t count) {
  const auto* on_gpu = reinterpret_cast<float*>(twins.grad(0, param));
  const auto* on_host = reinterpret_cast<float*>(twins.grad(1, param));
  double miss = 0, size = 0;
  for (size_t i = 0; i < count; i++) {
    miss += std::pow(static_cast<double>(on_gpu[i]) - static_cast<double>(on_host[i]), 2);
    size += std::pow(static_cast<double>(on_host[i]), 2);
  }
  return size > 0 ? miss / size : -1;
}

// All ranks end with the code and a sentence that contains the parts.
template <class Body>
void require_gpu_error(FakePort& port, tuttiResult_t code, const std::vector<std::string>& parts, Body&& body) {
  const auto outcomes = run_gpu_threads(port, 2, Seats::kOwnGpus, body);
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.code == code);
    CHECK(outcome.wrong == 0);
    for (const std::string& part : parts) {
      INFO("has to have: " << part);
      CHECK(contains(outcome.message, part));
    }
  }
}

}  // namespace

TEST_CASE("gradients on GPUs become the host's averages, whatever way the data take") {
  for (const Seats seats : kAllSeats)
    for (const int n : {1, 2, 3})
      for (const bool own : {false, true}) {
        INFO("seats " << static_cast<int>(seats) << ", " << n << " ranks, own " << own);
        compare_steps(seats, n, kFloats, own, small_buckets());
        compare_steps(seats, n, kTypes, own, small_buckets());
      }
}

TEST_CASE("compression to 16 bits on GPUs gives the host's bits") {
  for (const tuttiDdpCompression_t compression : {tuttiDdpFloat16, tuttiDdpBfloat16})
    for (const auto& specs : {kFloats, kTypes}) {
      tuttiDdpConfig_t config = small_buckets();
      config.compression = compression;
      compare_steps(Seats::kOwnGpus, 3, specs, false, config);
    }
}

TEST_CASE("compression to 8 bits on GPUs gives the host's bits, with what rounding took before") {
  for (const tuttiDdpCompression_t compression : {tuttiDdpInt8, tuttiDdpFloat8e4m3})
    for (const bool feeds_back : {false, true})
      for (const auto& specs : {kFloats, kTypes}) {
        tuttiDdpConfig_t config = small_buckets();
        config.compression = compression;
        config.errorFeedback = feeds_back ? 1 : 0;
        compare_steps(Seats::kOwnGpus, 3, specs, false, config);
      }
}

TEST_CASE("some parameters on the GPU, some in host memory") {
  auto specs = kFloats;
  for (const size_t p : {1, 2, 4}) specs[p].on_host = true;
  compare_steps(Seats::kOwnGpus, 2, specs, false, small_buckets());
  compare_steps(Seats::kTogether, 2, specs, true, small_buckets());
}

TEST_CASE("on GPUs, parameters that a step does not use, and steps without synchronisation") {
  const bool own = GENERATE(false, true);
  FakePort port(2);
  require_success(run_gpu_threads(port, 2, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
    Twins twins(port, kFloats, own, r, gpu, host);
    tuttiDdpConfig_t config = small_buckets();
    config.findUnused = 1;
    twins.create(config, o);
    for (int step = 0; step < 4 && o.code == tuttiSuccess; step++) {
      // Parameter 1 is used only in the first step, parameter 4 by one rank only.
      twins.step(step, o, [&](size_t p) { return step == 0 || (p != 1 && (p != 4 || r == 0)); });
      o.wrong += twins.wrong();
    }
    for (const tuttiDdp_t ddp : twins.ddp) take(o, tuttiDdpNoSyncBegin(ddp));
    twins.step(5, o);
    o.wrong += twins.wrong();
    for (const tuttiDdp_t ddp : twins.ddp) {
      take(o, tuttiDdpNoSyncEnd(ddp));
      take(o, tuttiDdpZeroGradients(ddp));
    }
    twins.stream.synchronize();
    o.wrong += twins.wrong();
    twins.step(6, o);
    o.wrong += twins.wrong();
  }));
}

TEST_CASE("on GPUs, a static graph, and ranks with uneven inputs") {
  FakePort port(3);
  require_success(run_gpu_threads(port, 3, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
    {
      Twins twins(port, kFloats, false, r, gpu, host);
      tuttiDdpConfig_t config = small_buckets();
      config.staticGraph = 1;
      twins.create(config, o);
      for (int step = 0; step < 3; step++) {
        twins.step(step, o, [](size_t p) { return p != 1 && p != 6; });
        o.wrong += twins.wrong();
      }
    }
    for (const int static_graph : {0, 1}) {
      Twins twins(port, kFloats, false, r, gpu, host);
      tuttiDdpConfig_t config = small_buckets();
      config.joinable = 1;
      config.staticGraph = static_graph;
      twins.create(config, o);
      for (const int side : {0, 1}) {
        twins.sides = {side};
        for (int step = 0; step <= r; step++) twins.step(step, o, [&](size_t p) { return !static_graph || p != 1; });
        take(o, tuttiDdpJoin(twins.ddp[side]));
      }
      twins.stream.synchronize();
      o.wrong += twins.wrong();
    }
  }));
}

TEST_CASE("PowerSGD on GPUs does what it does on the host, to rounding") {
  FakePort port(2);
  const std::vector<Spec> specs = {{7}, {40 * 600, tuttiFloat32, 40}, {9}, {64 * 64, tuttiFloat32, 64}};
  require_success(run_gpu_threads(port, 2, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
    Twins twins(port, specs, false, r, gpu, host);
    tuttiDdpConfig_t config = small_buckets();
    config.compression = tuttiDdpPowerSgd;
    config.powerSgdStartStep = 1;
    config.powerSgdRank = 3;
    twins.create(config, o);
    for (int step = 0; step < 5 && o.code == tuttiSuccess; step++) {
      twins.step(step, o);
      for (const size_t p : {0, 2}) o.wrong += memcmp(twins.grad(0, p), twins.grad(1, p), specs[p].count * 4) != 0;
      for (const size_t p : {1, 3}) {
        const double miss = miss_of(twins, p, specs[p].count);
        o.wrong += !(miss >= 0 && miss < 1e-6);
      }
    }
    o.wrong += port.factors == 0;
    tuttiDdpStats_t stats[2] = {TUTTI_DDP_STATS_INITIALIZER, TUTTI_DDP_STATS_INITIALIZER};
    for (int side = 0; side < 2; side++) take(o, tuttiDdpGetStats(twins.ddp[side], &stats[side]));
    o.wrong += stats[0].reducedBytes != stats[1].reducedBytes || stats[0].reducedBytes * 2 > stats[0].gradientBytes;
  }));
}

TEST_CASE("more matrices, and more gradients that are checked, than one launch has room for") {
  FakePort port(2);
  const std::vector<Spec> matrices(tutti::cuda::kMaxFactors + 1, Spec{16 * 16, tuttiFloat32, 16});
  require_success(run_gpu_threads(port, 2, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
    Twins twins(port, matrices, false, r, gpu, host);
    tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;  // all in one bucket
    config.compression = tuttiDdpPowerSgd;
    config.powerSgdStartStep = 0;
    config.powerSgdRank = 1;
    twins.create(config, o);
    twins.step(0, o);
    for (size_t p = 0; p < matrices.size(); p++) {
      const double miss = miss_of(twins, p, matrices[p].count);
      o.wrong += !(miss >= 0 && miss < 1e-6);
    }
  }));
  const std::vector<Spec> vectors(tutti::cuda::kMaxSpans + 10, Spec{3});
  const std::string last = "parameter " + std::to_string(vectors.size() - 1);
  require_gpu_error(port, tuttiInvalidUsage, {"rank 1", last, "element 1"},
                    [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
                      Twins twins(port, vectors, false, r, gpu, host);
                      tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
                      config.checkEvery = 1;
                      twins.create(config, o);
                      take(o, tuttiDdpBegin(twins.ddp[0]));
                      const float bad = std::numeric_limits<float>::infinity();
                      char* const at = twins.grad(0, vectors.size() - 1) + sizeof bad;
                      (void)port.copy(at, &bad, sizeof bad, twins.stream.ref());
                      for (size_t p = 0; p < vectors.size(); p++) take(o, tuttiDdpMarkReady(twins.ddp[0], p));
                      take(o, tuttiDdpWait(twins.ddp[0]));
                    });
}

TEST_CASE("a step on GPUs keeps the host waiting for no gradient, and waits for them itself") {
  for (const Seats seats : {Seats::kTogether, Seats::kOwnGpus}) {
    FakePort port(2);
    uint32_t words[2] = {};
    std::atomic<int> has_waited{0};
    require_success(run_gpu_threads(port, 2, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
      Twins twins(port, kFloats, true, r, gpu, host);
      twins.create(small_buckets(), o);
      // The stream is blocked before the first gradient until both ranks have called everything in their steps.
      const tutti::cuda::WordOperation until_set{&words[r], 1, true};
      take(o, tuttiDdpBegin(twins.ddp[0]));
      (void)port.words(&until_set, 1, twins.stream.ref());
      take(o, tuttiDdpBegin(twins.ddp[1]));
      for (size_t p = kFloats.size(); p-- > 0;) {
        twins.fill(p, 0);
        for (const tuttiDdp_t ddp : twins.ddp) take(o, tuttiDdpMarkReady(ddp, p));
      }
      for (const tuttiDdp_t ddp : twins.ddp) take(o, tuttiDdpWait(ddp));
      tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
      take(o, tuttiDdpGetStats(twins.ddp[0], &stats));
      o.wrong += stats.steps != 1 || stats.totalCommSeconds != 0;  // the time is not known yet
      if (++has_waited == 2)
        for (uint32_t& word : words) __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
      twins.stream.synchronize();
      o.wrong += twins.wrong();
      take(o, tuttiDdpGetStats(twins.ddp[0], &stats));
      o.wrong += !(stats.totalCommSeconds > 0) || stats.exposedSeconds > stats.commSeconds;
    }));
  }
}

TEST_CASE("mistakes with gradients on GPUs are named") {
  FakePort port(2);
  SECTION("a parameter on a device, a communicator in host memory") {
    require_error(2, tuttiInvalidArgument, {"parameter 0 'layer0': device=0", "config.cudaDevice"},
                  [](int, tuttiComm_t comm, Outcome& o) {
                    Model model({5});
                    model.tensor(0).device = 0;
                    take(o, model.create(comm));
                  });
  }
  SECTION("a parameter on another device") {
    require_gpu_error(port, tuttiInvalidArgument, {"parameter 0 'layer0': device=7"},
                      [](int, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
                        Model model({5});
                        model.tensor(0).device = 7;
                        take(o, model.create(gpu));
                      });
  }
  SECTION("a parameter on the GPU of one rank alone") {
    require_gpu_error(port, tuttiInvalidUsage, {"rank 0 has parameter 0", "on a GPU"},
                      [](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
                        Model model({5});
                        if (r == 0) model.tensor(0).device = 0;
                        take(o, model.create(gpu));
                      });
  }
  SECTION("a stream in host memory, and during a step") {
    require_success(
        run_gpu_threads(port, 2, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
          Twins twins(port, kFloats, false, r, gpu, host);
          twins.create(small_buckets(), o);
          o.wrong += tuttiDdpSetStream(twins.ddp[1], nullptr) != tuttiInvalidUsage;
          o.wrong += !contains(tuttiDdpGetLastError(), "CUDA device");
          take(o, tuttiDdpBegin(twins.ddp[0]));
          o.wrong += tuttiDdpSetStream(twins.ddp[0], nullptr) != tuttiInvalidUsage;
          for (size_t p = 0; p < kFloats.size(); p++) take(o, tuttiDdpMarkReady(twins.ddp[0], p));
          take(o, tuttiDdpWait(twins.ddp[0]));
        }));
  }
  SECTION("never ready") {
    require_gpu_error(port, tuttiInvalidUsage, {"rank 1", "parameter 1", "never became ready"},
                      [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
                        Twins twins(port, kFloats, false, r, gpu, host);
                        twins.create(small_buckets(), o);
                        take(o, tuttiDdpBegin(twins.ddp[0]));
                        for (size_t p = 0; p < kFloats.size(); p++)
                          if (r == 0 || p != 1) take(o, tuttiDdpMarkReady(twins.ddp[0], p));
                        take(o, tuttiDdpWait(twins.ddp[0]));
                      });
  }
  SECTION("data sets lie in host memory") {
    require_gpu_error(port, tuttiInvalidArgument, {"CUDA device", "cudaDevice=-1"},
                      [](int, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
                        tuttiDdpData_t data = TUTTI_DDP_DATA_INITIALIZER;
                        take(o, tuttiDdpBroadcastData(&data, 0, gpu));
                      });
  }
}

TEST_CASE("checks of gradients on GPUs name rank and parameter") {
  FakePort port(2);
  tuttiDdpConfig_t config = small_buckets();
  config.checkEvery = 2;
  const auto run = [&](const std::vector<Spec>& specs, size_t param, std::vector<char> bad, bool in_data,
                       const std::vector<std::string>& parts) {
    require_gpu_error(port, tuttiInvalidUsage, parts, [&](int r, tuttiComm_t gpu, tuttiComm_t host, Outcome& o) {
      Twins twins(port, specs, false, r, gpu, host);
      twins.create(config, o);
      twins.step(0, o);
      o.wrong += o.code != tuttiSuccess;
      take(o, tuttiDdpBegin(twins.ddp[0]));
      for (size_t p = 0; p < specs.size(); p++) {
        twins.fill(p, 1);
        char* at = in_data ? twins.data(p) : twins.grad(0, p);
        if (r == 1 && p == param) (void)port.copy(at + 2 * bad.size(), bad.data(), bad.size(), twins.stream.ref());
        take(o, tuttiDdpMarkReady(twins.ddp[0], p));
      }
      take(o, tuttiDdpWait(twins.ddp[0]));
    });
  };
  const std::vector<std::string> parts = {"rank 1", "parameter 1", "element 2"};
  const float infinity = std::numeric_limits<float>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto bytes = [](const auto& value) {
    std::vector<char> out(sizeof value);
    memcpy(out.data(), &value, sizeof value);
    return out;
  };
  run(kFloats, 1, bytes(infinity), false, parts);
  run({{3}, {5000, tuttiFloat64}}, 1, bytes(nan), false, parts);
  run({{3}, {50, tuttiBfloat16}}, 1, bytes(uint16_t{0xff80}), false, parts);
  run({{3}, {50, tuttiFloat16}}, 1, bytes(uint16_t{0x7e00}), false, parts);
  run(kFloats, 1, bytes(1.5f), true, {"parameter 1", "differs from rank 0's on rank 1"});
}

TEST_CASE("a hook gets the GPU's communicator and stream") {
  FakePort port(2);
  tuttiDdpConfig_t config = small_buckets();
  config.hook = [](const tuttiDdpBucket_t* bucket, tuttiComm_t comm, tuttiStream_t stream, void*) {
    return tuttiAllReduce(bucket->data, bucket->data, bucket->count, bucket->datatype, tuttiAvg, comm, stream);
  };
  compare_steps(Seats::kOwnGpus, 2, kFloats, false, config);
}

#ifndef TUTTI_TEST_TSAN  // ThreadSanitizer does not follow forks of a process that has threads
TEST_CASE("ranks that are processes train on one GPU; a killed one ends the others' step") {
  constexpr int n = 3;
  FakePort port(1);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.cudaDevice = 0;
  Processes ranks(
      n,
      [&](int rank, tuttiComm_t comm, Outcome& o) {
        Model model({100, 100000, 3});
        for (size_t p = 0; p < model.size(); p++) model.tensor(p).device = 0;
        const tuttiDdpConfig_t small = small_buckets();
        take(o, model.create(comm, &small));
        for (int step = 0; step < 1000000 && o.code == tuttiSuccess; step++) {
          model.step(rank, step, o);
          if (o.code != tuttiSuccess) break;
          (void)port.synchronize(nullptr);
          o.wrong += model.wrong_averages(n, step);
          if (rank == 1 && step == 5) _exit(7);
        }
        o.wrong += tuttiDdpDestroy(model.ddp) != tuttiSuccess;
        take(o, tuttiCommAbort(comm));
      },
      &config);
  check_survivors(ranks.wait());
}
#endif
