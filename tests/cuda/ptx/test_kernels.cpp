// Kernels against their CPU twins, bit by bit, with all kinds of floats: cases that the other tests of kernels leave
// out.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "../fake.h"
#include "../twins.h"
#include "catch.h"
#include "cuda/programs.h"
#include "kernels/kernels.h"
#include "plan/planner.h"

using namespace tutti;
using namespace tutti::cuda;

namespace {

// Numbers of all magnitudes, every 7th one special: zeros, denormals, infinities, NaNs.
std::vector<char> any_numbers(DataType type, size_t count, std::mt19937& random) {
  const size_t size = dtype_bytes(type);
  std::vector<char> bytes(count * size + 16);
  for (size_t at = 0; at + 4 <= bytes.size(); at += 4) {
    const auto word = static_cast<uint32_t>(random());
    memcpy(&bytes[at], &word, sizeof word);
  }
  for (size_t i = 0; i < count; i += 7) {
    char* const at = bytes.data() + i * size;
    const uint32_t kind = random() % 4;
    if (kind < 2) memset(at, kind == 0 ? 0 : 0xff, size);                        // zero, NaN
    if (kind == 0 && random() % 2 == 0) at[size - 1] = static_cast<char>(0x80);  // -0
    if (kind == 2) memset(at + (size + 1) / 2, 0, size - (size + 1) / 2);        // small
    if (kind == 3 && size > 1)
      memset(at, 0, size - 1), at[size - 1] = static_cast<char>(0x7f), at[size - 2] = static_cast<char>(0x80);
  }
  return bytes;
}

template <class F>
bool equal(F a, F b) {
  return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);  // the compiler chooses the NaN
}

bool same(DataType type, const std::vector<char>& a, const std::vector<char>& b, size_t count) {
  const size_t size = dtype_bytes(type);
  for (size_t i = 0; i < count; i++) {
    double wide[2];
    float narrow[2];
    for (const int side : {0, 1}) {
      const char* const at = (side == 0 ? a : b).data() + i * size;
      if (type == DataType::kFloat64) memcpy(&wide[side], at, 8);
      if (type == DataType::kFloat32) memcpy(&narrow[side], at, 4);
    }
    if (type == DataType::kFloat64   ? !equal(wide[0], wide[1])
        : type == DataType::kFloat32 ? !equal(narrow[0], narrow[1])
                                     : memcmp(a.data() + i * size, b.data() + i * size, size) != 0)
      return false;
  }
  return true;
}

// A job with or without factors; `shift` elements of the first source are skipped.
void check_job(DataType type, RedOp op, bool scaled, uint32_t divisor, size_t elems, size_t shift, uint32_t seed) {
  INFO(dtype_name(type) << " " << red_op_name(op) << (scaled ? " scaled, " : ", ") << elems << " elements, shift "
                        << shift << ", divisor " << divisor);
  constexpr size_t kSources = 3;
  std::mt19937 random(seed);
  const size_t size = dtype_bytes(type);
  std::vector<std::vector<char>> in;
  for (size_t s = 0; s < kSources; s++) in.push_back(any_numbers(type, elems + 8, random));
  std::vector<char> out[2] = {std::vector<char>(elems * size + 16), std::vector<char>(elems * size + 16)};
  const auto factors = any_numbers(type, 2, random);
  for (const int side : {0, 1}) {
    JobList list;
    list.dtype = type;
    list.op = op;
    list.scaled = scaled;
    list.scales[0].at = factors.data();
    memcpy(&list.scales[1].bits, factors.data() + size, size);
    const void* src[] = {in[0].data() + shift * size, in[1].data(), in[2].data()};
    void* dst[] = {out[side].data()};
    REQUIRE(list.add(elems, divisor, src, kSources, dst, 1));
    finish_list(list, elems < 100 ? 64 : 0);  // small tiles, or large ones
    if (side == 0)
      tutti_test::kernels().run(list);
    else
      run_jobs_on_host(list);
  }
  const bool is_exact = (op == RedOp::kMin || op == RedOp::kMax) && divisor == 0;  // NaNs too
  REQUIRE((is_exact ? out[0] == out[1] : same(type, out[0], out[1], elems)));
}

void check_span(SpanStep step, DataType wide, DataType small, uint32_t seed) {
  INFO("step " << static_cast<int>(step) << " " << dtype_name(wide) << " " << dtype_name(small));
  std::mt19937 random(seed);
  constexpr size_t kCount = 3001;
  const bool narrows = step == SpanStep::kNarrow, widens = step == SpanStep::kWiden;
  const DataType from = widens ? small : wide, to = narrows ? small : wide;
  const size_t shift = step == SpanStep::kDigest ? 3 : 0;
  auto in = any_numbers(from, kCount, random);
  std::vector<char> out[2];
  for (const int side : {0, 1}) {
    out[side].resize((narrows || widens) ? kCount * dtype_bytes(to) : sizeof(uint64_t));
    SpanCall call;
    call.step = step;
    call.wide = wide;
    call.small = small;
    call.items[call.n_items++] = {in.data() + shift, out[side].data(), kCount};
    if (side == 0)
      tutti_test::kernels().run(call, 3);
    else
      run_spans_on_host(call, 3);
  }
  REQUIRE(same(narrows || widens ? to : DataType::kUint64, out[0], out[1], narrows || widens ? kCount : 1));
}

struct QuantisedKernel {
  DataType wire;
  size_t block_elems, elems;
  bool has_errors;
  size_t shift;  // added to all addresses, in bytes
};

// Blocks of all magnitudes, some too small or too large, one not finite.
std::vector<float> blocks_of(const QuantisedKernel& kernel, std::mt19937& random) {
  std::vector<float> values(kernel.elems);
  for (size_t i = 0; i < kernel.elems; i++) {
    const size_t block = i / kernel.block_elems;
    const int exponent = block % 5 == 4 ? (block % 2 == 0 ? -120 : 127) : static_cast<int>(block * 37 % 40) - 20;
    const float value = static_cast<float>(static_cast<int>(random() % 4001) - 2000) / 1000;
    values[i] = block == 3 && i % kernel.block_elems == 7 ? std::numeric_limits<float>::infinity()
                                                          : std::ldexp(value, exponent);
  }
  return values;
}

// Quantises and restores: with the kernels, their twins (side 1), and the host's code on its own memory (side 2).
void check_quantised(const QuantisedKernel& kernel, uint32_t seed) {
  INFO(dtype_name(kernel.wire) << ", blocks of " << kernel.block_elems << ", " << kernel.elems << " elements, shift "
                               << kernel.shift << (kernel.has_errors ? ", with errors" : ""));
  std::mt19937 random(seed);
  const auto values = blocks_of(kernel, random), lacking = blocks_of(kernel, random);
  const size_t floats = kernel.elems * sizeof(float), bytes = quantised_bytes(kernel.elems, kernel.block_elems);
  std::vector<char> in(floats + kernel.shift), errors[3], codes[3], back[3];
  memcpy(in.data() + kernel.shift, values.data(), floats);
  const int wire = kernel.wire == DataType::kInt8 ? 0 : 1;
  for (const int side : {0, 1, 2}) {
    errors[side] = back[side] = std::vector<char>(floats + kernel.shift);
    codes[side].resize(bytes + kernel.shift);
    memcpy(errors[side].data() + kernel.shift, lacking.data(), floats);
    SpanCall call;
    call.small = kernel.wire;
    call.block_elems = static_cast<uint32_t>(kernel.block_elems);
    char* const error = kernel.has_errors ? errors[side].data() + kernel.shift : nullptr;
    char *const code = codes[side].data() + kernel.shift, *const there = back[side].data() + kernel.shift;
    for (const bool quantises : {true, false}) {
      call.step = quantises ? SpanStep::kQuantise : SpanStep::kDequantise;
      call.n_items = 1;
      call.items[0] = quantises ? SpanItem{in.data() + kernel.shift, code, kernel.elems, error}
                                : SpanItem{code, there, kernel.elems};
      if (side == 0) tutti_test::kernels().run(call, 2);
      if (side == 1) run_spans_on_host(call, 2);
      if (side != 2) continue;
      std::vector<float> sums(values);
      for (size_t i = 0; kernel.has_errors && i < kernel.elems; i++) sums[i] += lacking[i];
      if (quantises) {
        tutti::kernels().quantise[wire](sums.data(), kernel.elems, kernel.block_elems, code);
      } else {
        tutti::kernels().dequantise[wire](code, kernel.elems, kernel.block_elems, there, false);
        for (size_t i = 0; kernel.has_errors && i < kernel.elems; i++) {
          float arrived;
          memcpy(&arrived, there + i * sizeof arrived, sizeof arrived);
          const float lost = residual_of(sums[i], arrived, 1);
          memcpy(error + i * sizeof lost, &lost, sizeof lost);
        }
      }
    }
  }
  const auto as_floats = [&](const std::vector<char>& shifted) {
    return std::vector<char>(shifted.begin() + static_cast<std::ptrdiff_t>(kernel.shift), shifted.end());
  };
  for (const int side : {1, 2}) {
    REQUIRE(codes[0] == codes[side]);
    REQUIRE(same(DataType::kFloat32, as_floats(back[0]), as_floats(back[side]), kernel.elems));
    REQUIRE(errors[0] == errors[side]);
  }
}

// A matrix of a FactorCall.
struct Matrix {
  std::vector<float> data, error, start, p, q;

  Matrix(uint64_t rows, uint64_t columns, uint32_t rank, std::mt19937& random)
      : data(rows * columns), error(data), start(columns * rank), p(rows * rank), q(start) {
    for (auto* all : {&data, &error, &start, &p, &q})
      for (float& number : *all) number = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 37;
    item = {nullptr, nullptr, nullptr, nullptr, nullptr, rows, columns, rank};
  }
  FactorItem item;
};

// An all-reduce on one device.
void check_program(const ProgramCall& loaded, DataType type, RedOp op, size_t count, size_t shift, uint32_t seed) {
  INFO(dtype_name(type) << " " << red_op_name(op) << ", " << count << " elements, shift " << shift);
  std::mt19937 random(seed);
  const size_t size = dtype_bytes(type);
  const size_t n = loaded.n_ranks;
  std::vector<std::vector<char>> in;
  for (size_t r = 0; r < n; r++) in.push_back(any_numbers(type, count + 2, random));
  std::vector<std::vector<char>> out[2];
  for (const int side : {0, 1}) {
    ProgramCall call = loaded;
    call.block_elems = count;
    call.dtype = type;
    call.op = op;
    call.divisor = op == RedOp::kAvg ? static_cast<uint32_t>(n) : 0;
    out[side].resize(n);
    for (size_t r = 0; r < n; r++) {
      out[side][r].resize(count * size + 16);
      call.inputs[r] = in[r].data() + shift * size;
      call.outputs[r] = out[side][r].data();
    }
    if (side == 0)
      tutti_test::kernels().run(call);
    else
      run_program_on_host(call);
  }
  for (size_t r = 0; r < n; r++) REQUIRE(same(type, out[0][r], out[1][r], count));
}

void check_factors(FactorPart part, uint32_t rank) {
  INFO("part " << static_cast<int>(part) << ", rank " << rank);
  std::mt19937 random(5);
  const Matrix before(45, 301, rank, random);
  Matrix after[2] = {before, before};
  for (const int side : {0, 1}) {
    Matrix& m = after[side];
    FactorCall call;
    call.part = part;
    call.items[call.n_items++] = {m.data.data(), m.error.data(), m.start.data(), m.p.data(),
                                  m.q.data(),    m.item.rows,    m.item.columns, m.item.rank};
    if (side == 0)
      tutti_test::kernels().run(call, 2);
    else
      run_factors_on_host(call, 2);
  }
  CHECK(after[0].data == after[1].data);
  CHECK(after[0].error == after[1].error);
  CHECK(after[0].start == after[1].start);
  CHECK(after[0].p == after[1].p);
  CHECK(after[0].q == after[1].q);
}

}  // namespace

TEST_CASE("interpreted schedules have the twins' bits for all types and operators, whatever the numbers") {
  tutti_test::FakePort port(1);
  Schedules schedules;
  for (int r = 0; r < 2; r++)
    schedules.push_back(
        Planner(r, flat_layout(2), Algo::kRing, false).schedule(Collective::kAllReduce, Algo::kRing, 0, 2));
  const auto loaded = SpreadPrograms::together(port, schedules, {1, 2, 64 << 10});
  REQUIRE(loaded);
  uint32_t seed = 1;
  for (int type = 0; type < kDataTypes; type++)
    for (int op = 0; op < kRedOps; op++)
      for (const size_t shift : {0, 1}) {
        // With the larger one each chunk has several tiles of whole packs per thread.
        for (const size_t count : {size_t{77}, size_t{dtype_bytes(static_cast<DataType>(type)) < 4 ? 50001u : 30001u}})
          check_program(loaded.value()->call(), static_cast<DataType>(type), static_cast<RedOp>(op), count, shift,
                        seed);
        seed++;
      }
}

TEST_CASE("interpreted schedules that add up many messages at once have the twins' bits") {
  tutti_test::FakePort port(1);
  constexpr int kRanks = 6;
  const Algo algo = algo_named("oneshot");
  Schedules schedules;
  for (int r = 0; r < kRanks; r++)
    schedules.push_back(Planner(r, flat_layout(kRanks), algo, false).schedule(Collective::kAllReduce, algo, 0));
  const auto loaded = SpreadPrograms::together(port, schedules, {1, 2, 4 << 10});
  REQUIRE(loaded);
  for (int type = 0; type < kDataTypes; type++)
    for (int op = 0; op < kRedOps; op++)
      for (const size_t shift : {0, 1})
        check_program(loaded.value()->call(), static_cast<DataType>(type), static_cast<RedOp>(op), 100, shift, 7);
}

TEST_CASE("reductions with and without factors have the twins' bits, whatever the numbers") {
  uint32_t seed = 1;
  for (int type = 0; type < kDataTypes; type++)
    for (int op = 0; op < kRedOps; op++)
      for (const size_t elems : {size_t{77}, size_t{9001}}) {
        const auto dtype = static_cast<DataType>(type);
        for (const bool scaled : {false, true})
          for (const size_t shift : {0, 1}) {
            check_job(dtype, static_cast<RedOp>(op), scaled, seed % 3 == 0 ? 7 : 0, elems, shift, seed);
            seed++;
          }
      }
}

TEST_CASE("conversions of gradients and looks at them have the twins' bits, whatever the numbers") {
  uint32_t seed = 1;
  for (const DataType small : {DataType::kFloat16, DataType::kBfloat16}) {
    for (const DataType wide : {DataType::kFloat32, DataType::kFloat64})
      for (const SpanStep step : {SpanStep::kNarrow, SpanStep::kWiden}) check_span(step, wide, small, seed++);
    check_span(SpanStep::kNonFinite, small, small, seed++);
  }
  for (const DataType wide : {DataType::kFloat32, DataType::kFloat64})
    check_span(SpanStep::kNonFinite, wide, DataType::kFloat16, seed++);
  check_span(SpanStep::kDigest, DataType::kUint8, DataType::kFloat16, seed++);
}

TEST_CASE("quantised blocks have the twins' bits, and those of the host's kernels") {
  uint32_t seed = 1;
  for (const DataType wire : {DataType::kInt8, DataType::kFloat8e4m3})
    for (const bool has_errors : {false, true})
      for (const size_t block_elems : {64, 128, 192, 256})
        for (const size_t elems : {size_t{1}, size_t{63}, 11 * block_elems, 9 * block_elems + 7})
          check_quantised({wire, block_elems, elems, has_errors, seed % 3 == 0 ? size_t{1} : 0}, seed), seed++;
}

TEST_CASE("the steps of a compression have the twins' bits") {
  for (const FactorPart part : {FactorPart::kProject, FactorPart::kOrthonormalise, FactorPart::kFindQ,
                                FactorPart::kRebuild, FactorPart::kKeepQ})
    for (const uint32_t rank : {3, 15}) check_factors(part, rank);  // Q's columns singly, and 2, 4 and 8 at a time
}
