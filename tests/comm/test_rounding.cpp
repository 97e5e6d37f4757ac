// 16- and 8-bit floats: sums of many ranks are made in float and rounded once; compared with sums in double.
#include <cmath>
#include <numeric>
#include <random>

#include "comm/ranks.h"
#include "sanitized.h"

using namespace tutti_test;

namespace {

struct Format {
  tuttiDataType_t type;
  const char* name;
  size_t bytes;
  int exponent_bits, mantissa_bits;
  double largest;
};
constexpr Format kFormats[] = {{tuttiFloat16, "half", 2, 5, 10, 65504},
                               {tuttiBfloat16, "bfloat16", 2, 8, 7, 3.3895313892515355e38},
                               {tuttiFloat8e4m3, "f8e4m3", 1, 4, 3, 448},
                               {tuttiFloat8e5m2, "f8e5m2", 1, 5, 2, 57344}};

uint32_t code_at(const Format& f, const std::vector<uint8_t>& data, size_t i) {
  uint32_t code = 0;
  memcpy(&code, data.data() + i * f.bytes, f.bytes);
  return code;
}

double decode(const Format& f, uint32_t code) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(code >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1);
  const double fraction = static_cast<double>(code & ((1u << f.mantissa_bits) - 1));
  const double unit = std::ldexp(1.0, -f.mantissa_bits);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction * unit, 1 - bias) : std::ldexp(1 + fraction * unit, exponent - bias);
  return (code >> (f.exponent_bits + f.mantissa_bits)) & 1 ? -magnitude : magnitude;
}

// The distance between neighbouring numbers of the format at `value`.
double unit_in_last_place(const Format& f, double value) {
  const int least = 2 - (1 << (f.exponent_bits - 1));
  const int exponent = value == 0 ? least : std::max(least, std::ilogb(value));
  return std::ldexp(1.0, exponent - f.mantissa_bits);
}

// Both signs and magnitudes around 1, so that most sums would round at every step that rounds.
std::vector<uint8_t> inputs(const Format& f, int rank, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(rank * 100 + f.type));
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  std::vector<uint8_t> data(count * f.bytes);
  for (size_t i = 0; i < count; i++) {
    const uint32_t exponent = static_cast<uint32_t>(bias - 2 + static_cast<int>(random() % 4));
    const uint32_t mantissa = random() & ((1u << f.mantissa_bits) - 1);
    const uint32_t sign = random() & 1;
    const uint32_t code = (sign << f.exponent_bits | exponent) << f.mantissa_bits | mantissa;
    memcpy(data.data() + i * f.bytes, &code, f.bytes);
  }
  return data;
}

// The exact sums of the ranks' inputs, the same for all ranks and operations.
struct Exact {
  Exact(const Format& f, int n, size_t count) : sums(count) {
    for (int rank = 0; rank < n; rank++) {
      const auto in = inputs(f, rank, count);
      for (size_t i = 0; i < count; i++) sums[i] += decode(f, code_at(f, in, i));
    }
  }
  std::vector<double> sums;
};

// Allows half a unit in the last place for the one rounding, and the error of n additions in float.
size_t count_wrong(const Format& f, int n, int op, const Exact& exact, size_t first, const std::vector<uint8_t>& data,
                   size_t elems) {
  size_t wrong = 0;
  for (size_t i = 0; i < elems; i++) {
    const double sum = exact.sums[first + i], want = op == tuttiAvg ? sum / n : sum;
    const double got = decode(f, code_at(f, data, i)), in_float = n * 0x1p-21;
    wrong += !(std::abs(got - want) <= 0.5 * unit_in_last_place(f, want) + in_float);
  }
  return wrong;
}

}  // namespace

TEST_CASE("sums of small floats are rounded once, whatever the algorithm that was asked for", "[long]") {
  const int n = GENERATE(3, 5, 9, 12);
  const char* algo = GENERATE("", "ring", "tree", "circulant", "doubling", "linear", "hierarchical", "chain");
  const char* transport = GENERATE("shm", "tcp");
  if (kSanitized && n > 5) return;
  INFO(n << " ranks, algorithm '" << algo << "' over " << transport);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.algo = algo;
  config.transports = transport;
  const size_t block = kSanitized ? 101 : 1001, count = block * static_cast<size_t>(n);
  std::vector<Exact> exact;
  for (const Format& f : kFormats) exact.emplace_back(f, n, count);
  require_success(run_threads(n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (size_t format = 0; format < std::size(kFormats); format++)
      for (const tuttiRedOp_t op : {tuttiSum, tuttiAvg}) {
        const Format& f = kFormats[format];
        const auto in = inputs(f, rank, count);
        std::vector<uint8_t> out(in.size());
        outcome.take(tuttiAllReduce(in.data(), out.data(), count, f.type, op, comm, nullptr));
        outcome.wrong += count_wrong(f, n, op, exact[format], 0, out, count);
        outcome.take(tuttiReduce(in.data(), out.data(), count, f.type, op, n - 1, comm, nullptr));
        if (rank == n - 1) outcome.wrong += count_wrong(f, n, op, exact[format], 0, out, count);
        outcome.take(tuttiReduceScatter(in.data(), out.data(), block, f.type, op, comm, nullptr));
        outcome.wrong += count_wrong(f, n, op, exact[format], block * static_cast<size_t>(rank), out, block);
      }
  }));
}

namespace {

// The bits of all sums of small floats on each rank, with one algorithm.
std::vector<std::vector<uint8_t>> all_sums(int n, const char* algo) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.algo = algo;
  std::vector<std::vector<uint8_t>> bits(static_cast<size_t>(n));
  require_success(run_threads(n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    std::vector<uint8_t>& all = bits[static_cast<size_t>(rank)];
    const auto keep = [&](const std::vector<uint8_t>& out) { all.insert(all.end(), out.begin(), out.end()); };
    std::vector<size_t> counts;
    for (int r = 0; r < n; r++) counts.push_back(r == 1 ? 0 : 100 + 3 * static_cast<size_t>(r));
    const size_t sum_of_counts = std::accumulate(counts.begin(), counts.end(), size_t{0});
    for (const Format& f : kFormats) {
      tuttiRedOp_t scaled = tuttiSum;
      const auto factor = inputs(f, 50 + rank, 1);
      outcome.take(tuttiRedOpCreatePreMulSum(&scaled, const_cast<uint8_t*>(factor.data()), f.type,
                                             tuttiScalarHostImmediate, comm));
      for (const tuttiRedOp_t op : {tuttiSum, tuttiProd, tuttiAvg, tuttiMax, scaled})
        for (const size_t count : {0, 1, 17, 5000}) {
          auto in = inputs(f, rank, count * static_cast<size_t>(n));
          std::vector<uint8_t> out(count * f.bytes);
          outcome.take(tuttiAllReduce(in.data(), out.data(), count, f.type, op, comm, nullptr));
          keep(out);
          outcome.take(tuttiReduce(in.data(), out.data(), count, f.type, op, 1, comm, nullptr));
          if (rank == 1) keep(out);
          outcome.take(tuttiReduceScatter(in.data(), out.data(), count, f.type, op, comm, nullptr));
          keep(out);
          outcome.take(tuttiAllReduce(in.data(), in.data(), count, f.type, op, comm, nullptr));
          keep(in);
        }
      const auto in = inputs(f, rank, sum_of_counts);
      std::vector<uint8_t> out(counts[static_cast<size_t>(rank)] * f.bytes);
      outcome.take(tuttiReduceScatterv(in.data(), out.data(), counts.data(), f.type, tuttiSum, comm, nullptr));
      keep(out);
      outcome.take(tuttiRedOpDestroy(scaled, comm));
    }
  }));
  return bits;
}

}  // namespace

TEST_CASE("sums of small floats have the same bits in one step and along a chain") {
  const int n = GENERATE(3, 5);
  CHECK(all_sums(n, "chain") == all_sums(n, "direct"));
}

// More than 32 MiB of floats. Three times 1, 2 and 4 are each one and a half exponents larger.
TEST_CASE("a sum of small floats that is made a piece at a time has each piece in its place") {
  constexpr size_t kCount = (8 << 20) + 1000;
  if (kSanitized) return;
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.algo = "chain";
  require_success(run_threads(3, &config, [](int, tuttiComm_t comm, Outcome& outcome) {
    const uint8_t codes[] = {0x38, 0x40, 0x48};
    std::vector<uint8_t> in(kCount), out(kCount);
    for (size_t i = 0; i < kCount; i++) in[i] = codes[i % 3];
    outcome.take(tuttiAllReduce(in.data(), out.data(), kCount, tuttiFloat8e4m3, tuttiSum, comm, nullptr));
    for (size_t i = 0; i < kCount; i++) outcome.wrong += out[i] != in[i] + 12;
  }));
}

TEST_CASE("many ranks make sums in their order with few links") {
  constexpr int n = 20;
  if (kSanitized) {
    WARN("skipped: it takes too long with a sanitizer");
    return;
  }
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.deterministic = 1;
  config.transports = "tcp";
  require_success(run_threads(n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    const auto links = [&] {
      tuttiCommMemStats_t stats = TUTTI_COMM_MEM_STATS_INITIALIZER;
      outcome.take(tuttiCommMemStats(comm, &stats));
      return stats.links;
    };
    const size_t before = links();
    constexpr size_t kCount = 3000;
    std::vector<float> in(kCount * n), out(kCount);
    const auto value = [](int r, size_t i) { return 1.0f / static_cast<float>(1 + static_cast<size_t>(r) * 7 + i); };
    for (size_t i = 0; i < in.size(); i++) in[i] = value(rank, i);
    const auto wrong = [&](size_t first) {
      size_t n_wrong = 0;
      for (size_t i = 0; i < kCount; i++) {
        float sum = value(0, first + i);
        for (int r = 1; r < n; r++) sum += value(r, first + i);
        n_wrong += out[i] != sum;
      }
      return n_wrong;
    };
    outcome.take(tuttiAllReduce(in.data(), out.data(), kCount, tuttiFloat, tuttiSum, comm, nullptr));
    outcome.wrong += wrong(0);
    outcome.take(tuttiReduceScatter(in.data(), out.data(), kCount, tuttiFloat, tuttiSum, comm, nullptr));
    outcome.wrong += wrong(static_cast<size_t>(rank) * kCount);
    outcome.take(tuttiReduce(in.data(), out.data(), kCount, tuttiFloat, tuttiSum, 3, comm, nullptr));
    if (rank == 3) outcome.wrong += wrong(0);
    const Format& half = kFormats[0];
    const auto small = inputs(half, rank, kCount);
    std::vector<uint8_t> small_out(small.size());
    outcome.take(tuttiAllReduce(small.data(), small_out.data(), kCount, half.type, tuttiSum, comm, nullptr));
    outcome.wrong += count_wrong(half, n, tuttiSum, Exact(half, n, kCount), 0, small_out, kCount);
    outcome.wrong += links() > before + 5;  // to and from two neighbours, and for the root
  }));
}
