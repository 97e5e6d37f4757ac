// How a bucket is reduced: the built-in compressions.
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "ddp/model.h"
#include "lib/ddp/floats.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

using namespace tutti_test;
using namespace tutti::ddp;

TEST_CASE("16-bit floats are rounded to the nearest, ties to even") {
  SECTION("float16: every one comes back, and what lies between two goes to the nearer") {
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
      const auto half = static_cast<uint16_t>(bits);
      const float value = from_float16(half);
      if ((bits & 0x7fff) > 0x7c00) {
        REQUIRE(std::isnan(value));
        REQUIRE(std::isnan(from_float16(to_float16(value))));
        continue;
      }
      REQUIRE(to_float16(value) == half);
      if ((bits & 0x7fff) >= 0x7bff) continue;
      const auto next = static_cast<uint16_t>(bits + 1);
      const float middle = value + (from_float16(next) - value) / 2;
      REQUIRE(to_float16(middle) == (bits % 2 == 0 ? half : next));
      REQUIRE(to_float16(std::nextafter(middle, value)) == half);
      REQUIRE(to_float16(std::nextafter(middle, from_float16(next))) == next);
    }
    REQUIRE(from_float16(1) == 0x1p-24f);
    REQUIRE(from_float16(0x7bff) == 65504.0f);
    REQUIRE(to_float16(65519.99f) == 0x7bff);
    REQUIRE(to_float16(65520.0f) == 0x7c00);
    REQUIRE(to_float16(std::numeric_limits<float>::infinity()) == 0x7c00);
    REQUIRE(to_float16(-1e30f) == 0xfc00);
  }
  SECTION("bfloat16") {
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
      const auto small = static_cast<uint16_t>(bits);
      if ((bits & 0x7fff) > 0x7f80) {
        REQUIRE(std::isnan(from_bfloat16(to_bfloat16(from_bfloat16(small)))));
        continue;
      }
      REQUIRE(to_bfloat16(from_bfloat16(small)) == small);
      if ((bits & 0x7fff) >= 0x7f7f) continue;
      const auto middle = std::bit_cast<float>((bits << 16) | 0x8000);
      REQUIRE(to_bfloat16(middle) == small + bits % 2);
      REQUIRE(to_bfloat16(std::bit_cast<float>((bits << 16) | 0x8001)) == small + 1);
      REQUIRE(to_bfloat16(std::bit_cast<float>((bits << 16) | 0x7fff)) == small);
    }
  }
}

#if defined(__x86_64__)
// As in a program that is linked with -ffast-math.
TEST_CASE("small 16-bit floats stay where the CPU takes subnormal floats for zeros") {
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZeros = 0x0040;
  std::vector<float> right(0x7c00), got(right.size());
  for (size_t bits = 0; bits < right.size(); bits++) right[bits] = from_float16(static_cast<uint16_t>(bits));
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kFlushToZero | kDenormalsAreZeros);
  size_t lost = 0;
  for (size_t bits = 0; bits < got.size(); bits++) {
    const auto half = static_cast<uint16_t>(bits);
    got[bits] = from_float16(half);
    lost += to_float16(right[bits]) != half;
  }
  _mm_setcsr(before);
  REQUIRE(got == right);
  REQUIRE(lost == 0);
}
#endif

TEST_CASE("16-bit compression averages to its precision and sends half the bytes") {
  const tuttiDdpCompression_t compression = GENERATE(tuttiDdpFloat16, tuttiDdpBfloat16);
  on_ranks(3, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({3, 7000, 64});
    tuttiDdpConfig_t config = small_buckets();
    config.compression = compression;
    take(outcome, model.create(comm, &config));
    model.step(rank, 0, outcome);
    const double precision = compression == tuttiDdpFloat16 ? 0x1p-11 : 0x1p-8;
    for (size_t p = 0; p < model.size(); p++)
      for (size_t i = 0; i < model.tensor(p).count; i++) {
        const double right = average_of(3, 0, p, i);
        outcome.wrong += !(std::abs(model.grad(p)[i] - right) <= precision * std::abs(right));
      }
    tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
    take(outcome, tuttiDdpGetStats(model.ddp, &stats));
    outcome.wrong += stats.reducedBytes * 2 > stats.gradientBytes + 4096;  // memory is rounded up to pages
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("8-bit compression averages within its bound, alike on all ranks, and sends about a quarter of the bytes") {
  const auto [compression, per_magnitude] =
      GENERATE(std::pair(tuttiDdpInt8, 126.0), std::pair(tuttiDdpFloat8e4m3, 13.5));
  on_ranks(3, [&, c = compression, bound = 8 / per_magnitude](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({3, 700, 64});
    tuttiDdpConfig_t config = small_buckets();
    config.compression = c;
    config.checkEvery = 1;
    take(outcome, model.create(comm, &config));
    size_t inexact = 0;
    for (int step = 0; step < 3; step++) {
      model.step(rank, step, outcome);
      for (size_t p = 0; p < model.size(); p++)
        outcome.wrong += model.wrong(p, [&](size_t param, size_t i) {
          const double right = average_of(3, step, param, i), got = static_cast<double>(model.grad(p)[i]);
          inexact += std::abs(got - right) > 1e-5;
          return std::abs(got - right) <= bound ? got : right;
        });
    }
    outcome.wrong += inexact == 0;
    tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
    take(outcome, tuttiDdpGetStats(model.ddp, &stats));
    outcome.wrong += stats.reducedBytes * 3 > stats.gradientBytes;
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("8-bit compression's error feedback: what one step leaves out comes with later ones") {
  constexpr int n = 2, kSteps = 40;
  on_ranks(n, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({3, 700, 64});
    tuttiDdpConfig_t config = small_buckets();
    config.compression = tuttiDdpFloat8e4m3;
    config.rebuildBuckets = 0;
    config.errorFeedback = 1;
    take(outcome, model.create(comm, &config));
    std::vector<double> sums(700);
    double first_miss = 0, miss = 0;
    for (int step = 1; step <= kSteps; step++) {
      model.step(rank, 0, outcome);
      miss = 0;
      for (size_t i = 0; i < sums.size(); i++) {
        sums[i] += static_cast<double>(model.grad(1)[i]);
        miss = std::max(miss, std::abs(sums[i] / step - average_of(n, 0, 1, i)));
      }
      if (step == 1) first_miss = miss;
    }
    outcome.wrong += !(first_miss > 0.05) || !(miss < first_miss / 5);
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("8-bit compression's errors end with their buckets") {
  const int rebuilds = GENERATE(0, 1);
  on_ranks(2, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({700, 300});
    tuttiDdpConfig_t config = small_buckets();
    config.compression = tuttiDdpInt8;
    config.errorFeedback = 1;
    config.rebuildBuckets = rebuilds;
    take(outcome, model.create(comm, &config));
    model.step(rank, 0, outcome);
    take(outcome, tuttiDdpBegin(model.ddp));
    for (size_t p = model.size(); p-- > 0;) {
      std::fill_n(model.grad(p), model.tensor(p).count, 0.0f);
      take(outcome, tuttiDdpMarkReady(model.ddp, p));
    }
    take(outcome, tuttiDdpWait(model.ddp));
    size_t left = 0;  // elements that still carry the first step's error
    for (size_t p = 0; p < model.size(); p++) left += model.wrong(p, [](size_t, size_t) { return 0.0; });
    outcome.wrong += (left == 0) != (rebuilds == 1);
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

#ifndef TUTTI_TEST_TSAN  // ThreadSanitizer does not follow forks of a process that has threads
TEST_CASE("a rank without room for 8-bit compression's errors says so to all ranks, and the next step is good") {
  Processes ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({700, 300});
    tuttiDdpConfig_t config = small_buckets();
    config.compression = tuttiDdpInt8;
    config.errorFeedback = 1;
    take(outcome, model.create(comm, &config));
    // After a failed and a good step the rank has everything that a step takes from the system.
    take(outcome, tuttiDdpBegin(model.ddp));
    if (rank == 0)
      for (const size_t p : {1, 0}) take(outcome, tuttiDdpMarkReady(model.ddp, p));
    outcome.wrong += tuttiDdpWait(model.ddp) != tuttiInvalidUsage;
    model.step(rank, 0, outcome);
    take(outcome, tuttiDdpBegin(model.ddp));  // buckets are rebuilt, so the errors are, too
    std::vector<int> taken;                   // by rank 1: all descriptors that are left
    const rlimit few{256, 256};
    outcome.wrong += setrlimit(RLIMIT_NOFILE, &few) != 0;
    for (int fd; rank == 1 && (fd = open("/dev/null", O_RDONLY)) >= 0;) taken.push_back(fd);
    for (const size_t p : {1, 0}) take(outcome, tuttiDdpMarkReady(model.ddp, p));
    const tuttiResult_t waited = tuttiDdpWait(model.ddp);
    outcome.wrong += waited != tuttiSystemError || !contains(tuttiDdpGetLastError(), "rank 1: ");
    for (const int fd : taken) close(fd);
    model.step(rank, 1, outcome);
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
  require_success(ranks.wait());
}
#endif

namespace {

constexpr size_t kRows = 40, kColumns = 60;

tuttiDdpConfig_t power_sgd(int rank) {
  tuttiDdpConfig_t config = TUTTI_DDP_CONFIG_INITIALIZER;
  config.compression = tuttiDdpPowerSgd;
  config.powerSgdRank = rank;
  config.powerSgdStartStep = 0;
  return config;
}

// A matrix between two vectors.
Model matrix_model() {
  Model model({7, kRows * kColumns, 9});
  model.tensor(1).ndim = 2;
  model.tensor(1).shape[0] = kRows;
  model.tensor(1).shape[1] = kColumns;
  return model;
}

}  // namespace

TEST_CASE("PowerSGD is exact where the average has its rank, and vectors are not compressed") {
  constexpr int n = 3;
  const auto u = [](int rank, size_t i) { return std::sin(static_cast<double>(i + 1) * (rank + 1)); };
  const auto v = [](int rank, size_t j) { return std::cos(static_cast<double>(j + 2) * (rank + 2)); };
  on_ranks(n, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model = matrix_model();
    const tuttiDdpConfig_t config = power_sgd(n);
    take(outcome, model.create(comm, &config));
    for (int step = 0; step < 3 && outcome.code == tuttiSuccess; step++) {
      take(outcome, tuttiDdpBegin(model.ddp));
      for (const size_t p : {0, 2}) model.fill(rank, step, p);
      for (size_t i = 0; i < kRows * kColumns; i++)
        model.grad(1)[i] = static_cast<float>(u(rank, i / kColumns) * v(rank, i % kColumns));
      for (size_t p = 3; p-- > 0;) take(outcome, tuttiDdpMarkReady(model.ddp, p));
      take(outcome, tuttiDdpWait(model.ddp));
      for (const size_t p : {0, 2})
        outcome.wrong += model.wrong(p, [&](size_t param, size_t i) { return average_of(n, step, param, i); });
      outcome.wrong += model.wrong(1, [&](size_t, size_t i) {
        double sum = 0;
        for (int r = 0; r < n; r++) sum += u(r, i / kColumns) * v(r, i % kColumns);
        return sum / n;
      });
    }
    tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
    take(outcome, tuttiDdpGetStats(model.ddp, &stats));
    const size_t factors = n * (kRows + kColumns), vectors = 2 * 16;  // with padding
    outcome.wrong += stats.reducedBytes != (factors + vectors) * sizeof(float);
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("PowerSGD's error feedback: what one step leaves out comes with later ones") {
  constexpr int n = 2, kSteps = 120;
  on_ranks(n, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model = matrix_model();
    const tuttiDdpConfig_t config = power_sgd(2);
    take(outcome, model.create(comm, &config));
    const auto gradient = [](int r) {
      std::mt19937 random(static_cast<unsigned>(r));
      std::vector<float> out(kRows * kColumns);
      for (float& x : out) x = static_cast<float>(random() % 2001) / 1000 - 1;
      return out;
    };
    const auto mine = gradient(rank), zero = gradient(0), one = gradient(1);
    std::vector<double> sum(kRows * kColumns);
    double first_miss = 0, miss = 0, size = 0;
    for (int step = 1; step <= kSteps && outcome.code == tuttiSuccess; step++) {
      take(outcome, tuttiDdpBegin(model.ddp));
      memcpy(model.grad(1), mine.data(), mine.size() * sizeof(float));
      for (size_t p = 3; p-- > 0;) take(outcome, tuttiDdpMarkReady(model.ddp, p));
      take(outcome, tuttiDdpWait(model.ddp));
      miss = size = 0;
      for (size_t i = 0; i < sum.size(); i++) {
        const double right = (static_cast<double>(zero[i]) + static_cast<double>(one[i])) / 2;
        sum[i] += static_cast<double>(model.grad(1)[i]);
        miss += std::pow(sum[i] / step - right, 2);
        size += std::pow(right, 2);
      }
      if (step == 1) first_miss = miss;
    }
    // A matrix of noise has little to compress: one step misses most of it, the mean of many steps does not.
    outcome.wrong += !(first_miss > 0.5 * size) || !(miss < 0.1 * size);
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("PowerSGD starts when it is told to, and gradients of zero do no harm") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model = matrix_model();
    tuttiDdpConfig_t config = power_sgd(1);
    config.powerSgdStartStep = 2;
    take(outcome, model.create(comm, &config));
    for (int step = 0; step < 2; step++) {
      model.step(rank, step, outcome);
      outcome.wrong += model.wrong_averages(2, step);
    }
    model.step(rank, 2, outcome);
    outcome.wrong += model.wrong_averages(2, 2) == 0;
    for (int step = 0; step < 3; step++) {
      take(outcome, tuttiDdpBegin(model.ddp));
      memset(model.grad(1), 0, kRows * kColumns * sizeof(float));
      for (size_t p = 3; p-- > 0;) take(outcome, tuttiDdpMarkReady(model.ddp, p));
      take(outcome, tuttiDdpWait(model.ddp));
      for (size_t i = 0; i < kRows * kColumns; i++) outcome.wrong += !std::isfinite(model.grad(1)[i]);
    }
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("PowerSGD goes on after a step with NaN or Inf") {
  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  on_ranks(2, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model = matrix_model();
    const tuttiDdpConfig_t config = power_sgd(1);
    take(outcome, model.create(comm, &config));
    for (int step = 0; step < 3; step++) {
      take(outcome, tuttiDdpBegin(model.ddp));
      for (size_t p = 3; p-- > 0;) {
        model.fill(rank, step, p);
        if (p == 1 && rank == 1 && step == 0) model.grad(1)[17] = bad;
        take(outcome, tuttiDdpMarkReady(model.ddp, p));
      }
      take(outcome, tuttiDdpWait(model.ddp));
      for (size_t i = 0; step > 0 && i < kRows * kColumns; i++) outcome.wrong += !std::isfinite(model.grad(1)[i]);
    }
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("PowerSGD has all its columns again after a gradient of lower rank") {
  const auto part = [](size_t k, size_t i) {
    return std::sin(static_cast<double>((i / kColumns + 1) * (k + 1))) *
           std::cos(static_cast<double>((i % kColumns + 2) * (2 * k + 1)));
  };
  on_ranks(2, [&](int, tuttiComm_t comm, Outcome& outcome) {
    Model model = matrix_model();
    const tuttiDdpConfig_t config = power_sgd(2);
    take(outcome, model.create(comm, &config));
    for (int step = 0; step < 6; step++) {
      take(outcome, tuttiDdpBegin(model.ddp));
      for (size_t i = 0; i < kRows * kColumns; i++)
        model.grad(1)[i] = static_cast<float>(part(0, i) + (step > 0 ? part(1, i) : 0));
      for (size_t p = 3; p-- > 0;) take(outcome, tuttiDdpMarkReady(model.ddp, p));
      take(outcome, tuttiDdpWait(model.ddp));
    }
    outcome.wrong += model.wrong(1, [&](size_t, size_t i) { return part(0, i) + part(1, i); });
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("PowerSGD goes on after a step of large gradients") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model = matrix_model();
    const tuttiDdpConfig_t config = power_sgd(2);
    take(outcome, model.create(comm, &config));
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int step = 0; step < 4; step++) {
      take(outcome, tuttiDdpBegin(model.ddp));
      for (size_t i = 0; i < kRows * kColumns; i++)
        model.grad(1)[i] = (static_cast<float>(random() % 2001) / 1000 - 1) * (step == 1 ? 1e12f : 1);
      for (size_t p = 3; p-- > 0;) take(outcome, tuttiDdpMarkReady(model.ddp, p));
      take(outcome, tuttiDdpWait(model.ddp));
      const float* const at = model.grad(1);
      outcome.wrong += std::all_of(at, at + kRows * kColumns, [](float x) { return x == 0; });
      outcome.wrong += !std::all_of(at, at + kRows * kColumns, [](float x) { return std::isfinite(x); });
    }
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}

TEST_CASE("PowerSGD takes more than two dimensions for a matrix, and compresses only what becomes half as much") {
  constexpr int n = 2;
  const auto u = [](size_t i) { return std::sin(static_cast<double>(i + 1)); };
  const auto v = [](size_t j) { return std::cos(static_cast<double>(j + 2)); };
  on_ranks(n, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    Model model({kRows * kColumns, 16});
    model.tensor(0).ndim = 3;
    model.tensor(0).shape[0] = kRows;
    model.tensor(0).shape[1] = 6;
    model.tensor(0).shape[2] = kColumns / 6;
    model.tensor(1).ndim = 2;
    model.tensor(1).shape[0] = model.tensor(1).shape[1] = 4;
    const tuttiDdpConfig_t config = power_sgd(1);
    take(outcome, model.create(comm, &config));
    take(outcome, tuttiDdpBegin(model.ddp));
    for (size_t i = 0; i < kRows * kColumns; i++)
      model.grad(0)[i] = static_cast<float>(u(i / kColumns) * v(i % kColumns) * (rank + 1));
    model.fill(rank, 0, 1);
    for (const size_t p : {1, 0}) take(outcome, tuttiDdpMarkReady(model.ddp, p));
    take(outcome, tuttiDdpWait(model.ddp));
    outcome.wrong += model.wrong(0, [&](size_t, size_t i) { return u(i / kColumns) * v(i % kColumns) * 1.5; });
    outcome.wrong += model.wrong(1, [](size_t param, size_t i) { return average_of(n, 0, param, i); });
    tuttiDdpStats_t stats = TUTTI_DDP_STATS_INITIALIZER;
    take(outcome, tuttiDdpGetStats(model.ddp, &stats));
    outcome.wrong += stats.reducedBytes != (kRows + kColumns + 16) * sizeof(float);
    take(outcome, tuttiDdpDestroy(model.ddp));
  });
}
