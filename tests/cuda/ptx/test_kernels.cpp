// Kernels against their twins on the CPU, bit by bit, with all that a float may be: what the other tests of the kernels
// leave out.
#include <cstring>
#include <random>
#include <vector>

#include "../fake.h"
#include "catch.h"
#include "cuda/programs.h"
#include "plan/planner.h"

using namespace tutti;
using namespace tutti::cuda;
using tutti_test::kernels;

namespace {

// Numbers of all sizes, and every 7th one special: zeros, denormals, infinities, NaNs.
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
    if (kind < 2) memset(at, kind == 0 ? 0 : 0xff, size);                  // zero, NaN
    if (kind == 2) memset(at + (size + 1) / 2, 0, size - (size + 1) / 2);  // small
    if (kind == 3 && size > 1)
      memset(at, 0, size - 1), at[size - 1] = static_cast<char>(0x7f), at[size - 2] = static_cast<char>(0x80);
  }
  return bytes;
}

template <class F>
bool equal(F a, F b) {
  return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);  // which NaN it is depends on the compiler
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

// A job with factors, and without; `shift`: of the first source, in elements.
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
    finish_list(list);
    if (elems < 100) (void)deal_out(list, 64);  // small tiles
    if (side == 0)
      kernels().run(list, 2);
    else
      run_jobs_on_host(list, 2);
  }
  REQUIRE(same(type, out[0], out[1], elems));
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
      kernels().run(call, 3);
    else
      run_spans_on_host(call, 3);
  }
  REQUIRE(same(narrows || widens ? to : DataType::kUint64, out[0], out[1], narrows || widens ? kCount : 1));
}

// One matrix of a FactorCall.
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

// All-reducing on one device.
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
      kernels().run(call);
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
      kernels().run(call, 2);
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
        Planner(r, flat_layout(2), Algo::kRing, false).schedule(Collective::kAllReduce, {Algo::kRing, 2}, 0));
  const auto loaded = LoadedPrograms::load(port, schedules, {1, 2, 64 << 10});
  REQUIRE(loaded);
  uint32_t seed = 1;
  for (int type = 0; type < kDataTypes; type++)
    for (int op = 0; op < kRedOps; op++)
      for (const size_t shift : {0, 1}) {
        // The larger one has several tiles of a thread's whole packs in each chunk.
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
    schedules.push_back(Planner(r, flat_layout(kRanks), algo, false).schedule(Collective::kAllReduce, {algo, 1}, 0));
  const auto loaded = LoadedPrograms::load(port, schedules, {1, 2, 4 << 10});
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

TEST_CASE("the steps of a compression have the twins' bits") {
  for (const FactorPart part : {FactorPart::kProject, FactorPart::kOrthonormalise, FactorPart::kFindQ,
                                FactorPart::kRebuild, FactorPart::kKeepQ})
    for (const uint32_t rank : {3, 15}) check_factors(part, rank);  // Q's columns one by one, and 2, 4 and 8 at a time
}
