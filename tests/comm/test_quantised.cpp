// tuttiAllReduceQuantized: error within the bound, the same bits on all ranks, and mistakes reported by name.
#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <random>

#include "comm/ranks.h"

using namespace tutti_test;

namespace {

struct WireCase {
  tuttiDataType_t wire;
  double per_magnitude;  // the bound in tutti.h
};
constexpr WireCase kWires[] = {{tuttiInt8, 126}, {tuttiFloat8e4m3, 13.5}};

std::vector<float> floats_of(int rank, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(rank) * 7919 + static_cast<uint32_t>(count));
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  // Blocks of very different magnitudes, some all zero.
  for (size_t i = 0; i < count; i++) values[i] = normal(random) * static_cast<float>(std::pow(10.0, i / 100 % 7) - 1);
  return values;
}

// Elements whose error is beyond the bound for n ranks.
size_t count_beyond(const std::vector<float>& got, int n, size_t block, const WireCase& wire, double divisor) {
  const size_t count = got.size();
  std::vector<std::vector<float>> inputs;
  for (int r = 0; r < n; r++) inputs.push_back(floats_of(r, count));
  size_t beyond = 0;
  for (size_t at = 0; at < count; at += block) {
    const size_t end = std::min(count, at + block);
    double bound = n * std::pow(2.0, -100);
    for (const auto& input : inputs) {
      double largest = 0;
      for (size_t i = at; i < end; i++) largest = std::max(largest, std::fabs(static_cast<double>(input[i])));
      bound += largest / wire.per_magnitude;
    }
    for (size_t i = at; i < end; i++) {
      double sum = 0;
      for (const auto& input : inputs) sum += static_cast<double>(input[i]);
      if (!(std::fabs(static_cast<double>(got[i]) - sum / divisor) <= bound / divisor)) beyond++;
    }
  }
  return beyond;
}

void check_sums(int n, size_t count, size_t block, const WireCase& wire, bool averages) {
  INFO(n << " ranks, " << count << " elements in blocks of " << block << ", wire type " << wire.wire);
  std::vector<std::vector<float>> results(static_cast<size_t>(n));
  require_success(run_threads(n, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    // In place on odd ranks, and from an odd address to another on even ones.
    const auto input = floats_of(rank, count);
    std::vector<float> output(count);
    std::vector<char> odd(count * sizeof(float) + 1), odd_too(odd.size());
    const bool in_place = rank % 2 != 0;
    char* const send = in_place ? reinterpret_cast<char*>(output.data()) : odd.data() + 1;
    char* const recv = in_place ? send : odd_too.data() + 1;
    const tuttiRedOp_t op = averages ? tuttiAvg : tuttiSum;
    for (int round = 0; round < 2; round++) {
      if (count > 0) std::memcpy(send, input.data(), count * sizeof(float));
      outcome.take(
          tuttiAllReduceQuantized(send, recv, count, tuttiFloat32, op, wire.wire, block, nullptr, comm, nullptr));
    }
    if (count > 0) std::memcpy(output.data(), recv, count * sizeof(float));
    results[static_cast<size_t>(rank)] = output;
  }));
  CHECK(count_beyond(results[0], n, block, wire, averages ? n : 1) == 0);
  for (const auto& result : results)
    CHECK((count == 0 || std::memcmp(result.data(), results[0].data(), count * sizeof(float)) == 0));
}

std::vector<Outcome> call_differently(const std::function<tuttiResult_t(int, float*, tuttiComm_t)>& call) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.opTimeoutSeconds = 5;
  return run_threads(2, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    std::vector<float> data(1000, 1.0f);
    outcome.take(call(rank, data.data(), comm));
  });
}

tuttiResult_t reduce(float* data, size_t count, tuttiDataType_t wire, size_t block, tuttiComm_t comm) {
  return tuttiAllReduceQuantized(data, data, count, tuttiFloat32, tuttiSum, wire, block, nullptr, comm, nullptr);
}

}  // namespace

TEST_CASE("quantised sums are within their bound and the same on all ranks") {
  for (const WireCase& wire : kWires)
    for (const int n : {1, 2, 3, 5})
      for (const size_t count : {0, 1, 63, 64, 129, 1000, 40'001})
        check_sums(n, count, count % 2 != 0 ? 128 : 192, wire, false);
}

TEST_CASE("quantised averages, and blocks of every size") {
  for (const size_t block : {64, 128, 192, 256}) check_sums(4, 5000, block, kWires[block % 128 == 0 ? 0 : 1], true);
}

// Large sums are done in slices. First with values that lose nothing: the largest of each block is 127 times a power of
// two, and so is that of the sums. Then with any values: what is missing from the results is in the ranks' errors.
TEST_CASE("large quantised sums") {
  constexpr size_t kCount = kSanitized ? 1'100'001 : 3'300'001, kBlockElems = 64;
  const auto base = [](size_t i) { return static_cast<float>(i % kBlockElems == 0 ? 127 : i * 7919 % 128); };
  for (const int n : {2, 3}) {
    std::vector<float> lacking(kCount);
    std::mutex mutex;
    require_success(run_threads(n, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
      const auto sum = [&](const std::vector<float>& from, std::vector<float>& to, float* errors) {
        outcome.take(tuttiAllReduceQuantized(from.data(), to.data(), kCount, tuttiFloat32, tuttiSum, tuttiInt8,
                                             kBlockElems, errors, comm, nullptr));
      };
      std::vector<float> values(kCount), errors(kCount), result(kCount);
      for (size_t i = 0; i < kCount; i++) values[i] = base(i) * (n == 3 && rank == 1 ? 2 : 1);
      sum(values, result, nullptr);
      for (size_t i = 0; i < kCount; i++) outcome.wrong += result[i] != base(i) * (n == 3 ? 4 : 2) ? 1 : 0;
      for (size_t i = 0; i < kCount; i++) values[i] = static_cast<float>((i * 7919 + static_cast<size_t>(rank)) % 1009);
      sum(values, result, errors.data());
      const std::lock_guard lock(mutex);
      for (size_t i = 0; i < kCount; i++) lacking[i] += values[i] - errors[i] - (rank == 0 ? result[i] : 0);
    }));
    CHECK(std::count_if(lacking.begin(), lacking.end(), [](float x) { return std::fabs(x) > 0.01f; }) == 0);
  }
}

TEST_CASE("a block that is not finite becomes NaNs on all ranks, and others do not") {
  const float infinity = std::numeric_limits<float>::infinity();
  require_success(run_threads(3, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    std::vector<float> data(300, 1.0f);
    if (rank == 1) data[130] = infinity;
    outcome.take(reduce(data.data(), data.size(), tuttiInt8, 128, comm));
    for (size_t i = 0; i < data.size(); i++)
      if (i >= 128 && i < 256 ? !std::isnan(data[i]) : std::fabs(data[i] - 3) > 0.05f) outcome.wrong++;
  }));
}

TEST_CASE("a block with more than 2^127 becomes NaNs, whosever it is, though the average is less") {
  require_success(run_threads(3, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (const bool sum_is_less : {false, true}) {
      std::vector<float> data(3 * 64, 1.0f);  // one block for each rank to reduce
      for (size_t block = 0; block < 3; block++) {
        if (rank == 1) data[block * 64] = 0x1.8p127f;
        if (rank == 2 && sum_is_less) data[block * 64] = -0x1p126f;
      }
      outcome.take(tuttiAllReduceQuantized(data.data(), data.data(), data.size(), tuttiFloat32, tuttiAvg, tuttiInt8, 64,
                                           nullptr, comm, nullptr));
      for (const float value : data) outcome.wrong += std::isnan(value) ? 0 : 1;
    }
  }));
}

TEST_CASE("quantised sums on a stream and in a group keep the order of calls") {
  require_success(run_threads(2, nullptr, [](int, tuttiComm_t comm, Outcome& outcome) {
    std::vector<float> a(500, 1.0f), b(500, 2.0f);
    tuttiStream_t stream = nullptr;
    outcome.take(tuttiStreamCreate(&stream));
    outcome.take(tuttiAllReduceQuantized(a.data(), a.data(), a.size(), tuttiFloat32, tuttiSum, tuttiInt8, 64, nullptr,
                                         comm, stream));
    outcome.take(tuttiAllReduce(a.data(), a.data(), a.size(), tuttiFloat32, tuttiSum, comm, stream));
    outcome.take(tuttiStreamSynchronize(stream));
    outcome.take(tuttiGroupStart());
    outcome.take(reduce(b.data(), b.size(), tuttiInt8, 64, comm));
    outcome.take(reduce(a.data(), a.size(), tuttiInt8, 64, comm));
    outcome.take(tuttiGroupEnd());
    outcome.take(tuttiStreamDestroy(stream));
    for (const float value : a)
      if (std::fabs(value - 8) > 0.1f) outcome.wrong++;
    for (const float value : b)
      if (std::fabs(value - 4) > 0.1f) outcome.wrong++;
  }));
}

TEST_CASE("ranks that quantise differently are told so") {
  const auto blocks = call_differently([](int rank, float* data, tuttiComm_t comm) {
    return reduce(data, 1000, tuttiInt8, rank == 0 ? 64 : 128, comm);
  });
  for (const Outcome& outcome : blocks) {
    INFO(outcome.message);
    CHECK(outcome.code == tuttiInvalidUsage);
    CHECK(contains(outcome.message, "in blocks of 64"));
    CHECK(contains(outcome.message, "in blocks of 128"));
  }
  // Also after a good call that has made the links.
  const auto counts = call_differently([](int rank, float* data, tuttiComm_t comm) {
    const tuttiResult_t first = reduce(data, 1000, tuttiInt8, 64, comm);
    if (first != tuttiSuccess) return first;
    return reduce(data, rank == 0 ? 1000 : 999, tuttiInt8, 64, comm);
  });
  const auto kinds = call_differently([](int rank, float* data, tuttiComm_t comm) {
    const tuttiResult_t first = reduce(data, 1000, tuttiInt8, 64, comm);
    if (first != tuttiSuccess) return first;
    if (rank == 0) return reduce(data, 1000, tuttiInt8, 64, comm);
    return tuttiAllReduce(data, data, 1000, tuttiFloat32, tuttiSum, comm, nullptr);
  });
  for (const auto& outcomes : {counts, kinds})
    for (const Outcome& outcome : outcomes) {
      INFO(outcome.message);
      CHECK(outcome.code == tuttiInvalidUsage);
      CHECK(contains(outcome.message, "AllReduceQuantized"));
    }
}

TEST_CASE("with error feedback all results together lack what the errors say") {
  constexpr int kRounds = 10;
  constexpr size_t kCount = 10'001, kBlock = 64;
  for (const WireCase& wire : kWires)
    for (const int n : {2, 3})
      for (const bool averages : {false, true}) {
        INFO(n << " ranks, wire type " << wire.wire << ", averages: " << averages);
        std::vector<std::vector<float>> errors(static_cast<size_t>(n), std::vector<float>(kCount));
        std::vector<double> results(kCount);
        require_success(run_threads(n, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
          const auto input = floats_of(rank, kCount);
          // At an odd address.
          std::vector<char> odd(kCount * sizeof(float) + 1);
          std::vector<float> output(kCount);
          for (int round = 0; round < kRounds; round++) {
            outcome.take(tuttiAllReduceQuantized(input.data(), output.data(), kCount, tuttiFloat32,
                                                 averages ? tuttiAvg : tuttiSum, wire.wire, kBlock, odd.data() + 1,
                                                 comm, nullptr));
            for (size_t i = 0; rank == 0 && i < kCount; i++) results[i] += static_cast<double>(output[i]);
          }
          std::memcpy(errors[static_cast<size_t>(rank)].data(), odd.data() + 1, kCount * sizeof(float));
        }));
        std::vector<std::vector<float>> inputs;
        for (int r = 0; r < n; r++) inputs.push_back(floats_of(r, kCount));
        size_t wrong = 0, lacking = 0;
        for (size_t i = 0; i < kCount; i++) {
          double exact = 0, lacks = 0, size = 0;
          for (size_t r = 0; r < inputs.size(); r++) {
            exact += kRounds * static_cast<double>(inputs[r][i]);
            lacks += static_cast<double>(errors[r][i]);
            size += std::fabs(static_cast<double>(inputs[r][i]));
          }
          // Result plus errors gives the exact sum, up to float's rounding of numbers as large as the block's largest.
          const size_t block = i / kBlock * kBlock;
          for (size_t j = block; j < std::min(kCount, block + kBlock); j++)
            for (const auto& input : inputs) size = std::max(size, std::fabs(static_cast<double>(input[j])));
          wrong += !(std::fabs(results[i] * (averages ? n : 1) + lacks - exact) <= 1e-4 * size);
          lacking += std::fabs(lacks) > 1e-4 * size;
        }
        CHECK(wrong == 0);
        CHECK(lacking > kCount / 4);
      }
}

TEST_CASE("error feedback forgets what is not finite") {
  require_success(run_threads(2, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    std::vector<float> data(100, 1.0f), errors(100);
    if (rank == 1) data[70] = std::numeric_limits<float>::infinity();
    outcome.take(tuttiAllReduceQuantized(data.data(), data.data(), data.size(), tuttiFloat32, tuttiSum, tuttiInt8, 64,
                                         errors.data(), comm, nullptr));
    for (const float error : errors) outcome.wrong += !std::isfinite(error);
  }));
}

TEST_CASE("what quantised sums keep for the next one counts as memory of the communicator") {
  constexpr size_t kCount = 1 << 16;
  require_success(run_threads(2, nullptr, [](int, tuttiComm_t comm, Outcome& outcome) {
    std::vector<float> data(kCount, 1.0f);
    tuttiCommMemStats_t before = TUTTI_COMM_MEM_STATS_INITIALIZER, after = before;
    outcome.take(tuttiCommMemStats(comm, &before));
    outcome.take(tuttiAllReduceQuantized(data.data(), data.data(), kCount, tuttiFloat32, tuttiSum, tuttiInt8, 64,
                                         nullptr, comm, nullptr));
    outcome.take(tuttiCommMemStats(comm, &after));
    // A byte for each element, and for each of the other rank's in this rank's half.
    outcome.wrong += after.scratchBytes < before.scratchBytes + kCount + kCount / 2;
  }));
}

TEST_CASE("what cannot be quantised is refused") {
  require_success(run_threads(1, nullptr, [](int, tuttiComm_t comm, Outcome& outcome) {
    float data[64] = {};
    const auto refuses = [&](tuttiDataType_t type, tuttiRedOp_t op, tuttiDataType_t wire, size_t block,
                             const char* says) {
      const tuttiResult_t code = tuttiAllReduceQuantized(data, data, 64, type, op, wire, block, nullptr, comm, nullptr);
      if (code != tuttiInvalidArgument || !contains(tuttiGetLastError(nullptr), says)) outcome.wrong++;
    };
    refuses(tuttiFloat64, tuttiSum, tuttiInt8, 64, "datatype is double");
    refuses(tuttiFloat32, tuttiMax, tuttiInt8, 64, "op is max");
    refuses(tuttiFloat32, tuttiSum, tuttiFloat16, 64, "wiretype is half");
    refuses(tuttiFloat32, tuttiSum, tuttiInt8, 100, "block_elems=100");
    refuses(tuttiFloat32, tuttiSum, tuttiInt8, 0, "block_elems=0");
    refuses(tuttiFloat32, tuttiSum, tuttiInt8, 512, "block_elems=512");
    const tuttiResult_t code =
        tuttiAllReduceQuantized(data, data, 32, tuttiFloat32, tuttiSum, tuttiInt8, 64, data + 31, comm, nullptr);
    if (code != tuttiInvalidArgument || !contains(tuttiGetLastError(nullptr), "errorbuff overlaps")) outcome.wrong++;
    float sums[64] = {};
    for (float* const errors : {data + 31, sums + 31}) {
      const tuttiResult_t apart =
          tuttiAllReduceQuantized(data, sums, 32, tuttiFloat32, tuttiSum, tuttiInt8, 64, errors, comm, nullptr);
      if (apart != tuttiInvalidArgument || !contains(tuttiGetLastError(nullptr), "errorbuff overlaps")) outcome.wrong++;
    }
  }));
}
