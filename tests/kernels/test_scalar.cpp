// The scalar reference, compared with folds that are computed by other means: double for floats, the compiler's
// overflow arithmetic for integers.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "catch.h"
#include "kernels/cpu/convert.h"
#include "kernels/kernels.h"

using namespace tutti;

namespace {

template <class E>
std::vector<E> reduce(DataType type, RedOp op, const std::vector<std::vector<E>>& sources, uint32_t divisor = 0) {
  std::vector<E> out(sources[0].size());
  ReduceArgs args{};
  std::vector<const void*> src;
  for (const auto& source : sources) src.push_back(source.data());
  args.src = src.data();
  args.dst[0] = out.data();
  args.n_src = static_cast<int>(sources.size());
  args.n_dst = 1;
  args.elems = out.size();
  args.divisor = divisor;
  all_kernel_tables().front()->reduce[static_cast<int>(op)][static_cast<int>(type)](args);
  return out;
}

// One element.
template <class E>
E reduce1(DataType type, RedOp op, const std::vector<E>& values, uint32_t divisor = 0) {
  std::vector<std::vector<E>> sources;
  for (const E value : values) sources.push_back({value});
  return reduce<E>(type, op, sources, divisor)[0];
}

template <class E>
E expected_int(RedOp op, const std::vector<E>& values, uint32_t divisor) {
  E acc = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    switch (op) {
      case RedOp::kProd: (void)__builtin_mul_overflow(acc, values[i], &acc); break;
      case RedOp::kMin: acc = std::min(acc, values[i]); break;
      case RedOp::kMax: acc = std::max(acc, values[i]); break;
      case RedOp::kSum:
      case RedOp::kPreMulSum:
      case RedOp::kAvg: (void)__builtin_add_overflow(acc, values[i], &acc); break;
    }
  }
  if (op != RedOp::kAvg || divisor == 0) return acc;
  // By magnitude, to avoid mixing signed and unsigned types.
  const bool negative = acc < 0;
  const uint64_t magnitude = negative ? uint64_t{0} - static_cast<uint64_t>(acc) : static_cast<uint64_t>(acc);
  const uint64_t quotient = magnitude / divisor;
  return static_cast<E>(negative ? uint64_t{0} - quotient : quotient);
}

template <class E>
void check_ints(DataType type) {
  std::mt19937_64 random(11);
  int wrong = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<E> values(1 + random() % 12);
    for (E& value : values) {
      const uint64_t kind = random() % 8;
      value = kind == 0   ? std::numeric_limits<E>::min()
              : kind == 1 ? std::numeric_limits<E>::max()
                          : static_cast<E>(random());
    }
    const uint32_t divisors[] = {0, 1, 2, 3, 7, 128, 255, 65536, 0x80000000u, 0xffffffffu};
    const uint32_t divisor = divisors[random() % std::size(divisors)];
    for (int op = 0; op < kRedOps; ++op) {
      const auto red_op = static_cast<RedOp>(op);
      wrong += reduce1(type, red_op, values, divisor) != expected_int(red_op, values, divisor);
    }
  }
  INFO(dtype_name(type));
  CHECK(wrong == 0);
}

// The result of one operation on floats, computed in double, which holds sums and products of two floats precisely
// enough that rounding twice is harmless (53 >= 2 * 24 + 2 bits). For doubles themselves it is the operation.
template <class F>
F expected_float(RedOp op, const std::vector<F>& values, uint32_t divisor) {
  double acc = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    const double x = values[i];
    if (op == RedOp::kProd) acc = static_cast<F>(acc * x);
    if (op == RedOp::kSum || op == RedOp::kAvg) acc = static_cast<F>(acc + x);
    if (op == RedOp::kMin) acc = std::isnan(acc) || std::isnan(x) ? NAN : std::fmin(acc, x);
    if (op == RedOp::kMax) acc = std::isnan(acc) || std::isnan(x) ? NAN : std::fmax(acc, x);
  }
  if (op == RedOp::kAvg && divisor) acc = static_cast<F>(acc / divisor);
  return static_cast<F>(acc);
}

// `decode` and `encode` convert between stored elements and the float type of the computation.
template <class F, class E, class Decode, class Encode>
void check_floats(DataType type, Decode decode, Encode encode) {
  std::mt19937_64 random(13);
  int wrong = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<E> stored(1 + random() % 12);
    std::vector<F> values;
    const uint64_t kind = random() % 4;
    for (E& element : stored) {
      // Mostly of similar magnitude, so that sums round; sometimes any bits, including infinities, NaNs and denormals.
      const uint64_t any = random();
      if (kind) {
        element = encode(static_cast<F>((static_cast<double>(any % 4001) - 2000) / (1 + any % 7)));
      } else {
        std::memcpy(&element, &any, sizeof element);
      }
      values.push_back(decode(element));
    }
    for (int op = 0; op < kRedOps; ++op) {
      const auto red_op = static_cast<RedOp>(op);
      const uint32_t divisor = static_cast<uint32_t>(random() % 10);
      if (stored.size() == 1 && (red_op != RedOp::kAvg || !divisor)) continue;  // a copy, checked below
      const F got = decode(reduce1(type, red_op, stored, divisor));
      const F expected = decode(encode(expected_float(red_op, values, divisor)));
      wrong += std::isnan(expected) ? !std::isnan(got) : got != expected;
    }
  }
  INFO(dtype_name(type));
  CHECK(wrong == 0);
}

template <class Format, class Code>
void check_small_floats(DataType type) {
  check_floats<float, Code>(
      type, [](Code code) { return Format::to_float(code); },
      [](float value) { return static_cast<Code>(Format::from_float(value)); });
}

}  // namespace

TEST_CASE("scalar: integers wrap and divide towards zero") {
  check_ints<int8_t>(DataType::kInt8);
  check_ints<uint8_t>(DataType::kUint8);
  check_ints<int32_t>(DataType::kInt32);
  check_ints<uint32_t>(DataType::kUint32);
  check_ints<int64_t>(DataType::kInt64);
  check_ints<uint64_t>(DataType::kUint64);
}

TEST_CASE("scalar: floats are folded from left to right in their own or float's precision") {
  check_floats<float, float>(
      DataType::kFloat32, [](float x) { return x; }, [](float x) { return x; });
  check_floats<double, double>(
      DataType::kFloat64, [](double x) { return x; }, [](double x) { return x; });
  check_small_floats<Half, uint16_t>(DataType::kFloat16);
  check_small_floats<Bfloat16, uint16_t>(DataType::kBfloat16);
  check_small_floats<Float8e4m3, uint8_t>(DataType::kFloat8e4m3);
  check_small_floats<Float8e5m2, uint8_t>(DataType::kFloat8e5m2);
}

TEST_CASE("scalar: known values") {
  const float inf = INFINITY;
  CHECK(reduce1<float>(DataType::kFloat32, RedOp::kSum, {3e38f, 3e38f}) == inf);
  CHECK(std::isnan(reduce1<float>(DataType::kFloat32, RedOp::kSum, {inf, -inf})));
  CHECK(reduce1<float>(DataType::kFloat32, RedOp::kSum, {1e-45f, 1e-45f}) == 2.8e-45f);
  CHECK(std::signbit(reduce1<float>(DataType::kFloat32, RedOp::kSum, {-0.0f, -0.0f})));
  CHECK(!std::signbit(reduce1<float>(DataType::kFloat32, RedOp::kSum, {-0.0f, 0.0f})));
  CHECK(reduce1<float>(DataType::kFloat32, RedOp::kAvg, {1.0f, 1.0f, 2.0f}, 3) == 4.0f / 3.0f);
  CHECK(reduce1<int32_t>(DataType::kInt32, RedOp::kAvg, {-7, 0}, 2) == -3);
  CHECK(reduce1<int8_t>(DataType::kInt8, RedOp::kSum, {127, 1}) == -128);
  CHECK(reduce1<int64_t>(DataType::kInt64, RedOp::kProd, {INT64_MIN, -1}) == INT64_MIN);
  // The float accumulator keeps what half precision would lose at every step: 2048 + 1 + 1.
  CHECK(reduce1<uint16_t>(DataType::kFloat16, RedOp::kSum, {0x6800, 0x3c00, 0x3c00}) == 0x6801);
  // 448 + 448 saturates, 57344 * 2 saturates, infinity stays.
  CHECK(reduce1<uint8_t>(DataType::kFloat8e4m3, RedOp::kSum, {0x7e, 0x7e}) == 0x7e);
  CHECK(reduce1<uint8_t>(DataType::kFloat8e5m2, RedOp::kSum, {0x7b, 0x7b}) == 0x7b);
  CHECK(reduce1<uint8_t>(DataType::kFloat8e5m2, RedOp::kMax, {0x7c, 0x3c}) == 0x7c);
  CHECK(reduce1<uint8_t>(DataType::kFloat8e5m2, RedOp::kMax, {0x3c, 0x7d}) == 0x7f);
}

TEST_CASE("scalar: a NaN in any source is the minimum and the maximum") {
  for (const RedOp op : {RedOp::kMin, RedOp::kMax}) {
    for (size_t where = 0; where < 3; ++where) {
      std::vector<double> values = {1.0, 2.0, -3.0};
      values[where] = NAN;
      CHECK(std::isnan(reduce1<double>(DataType::kFloat64, op, values)));
      std::vector<uint16_t> halfs = {0x3c00, 0x4000, 0xc200};
      halfs[where] = 0xfe01;
      CHECK(reduce1<uint16_t>(DataType::kFloat16, op, halfs) == 0x7fff);
    }
  }
}

TEST_CASE("scalar: one source is copied bit by bit") {
  CHECK(reduce1<uint16_t>(DataType::kFloat16, RedOp::kSum, {0xfc01}) == 0xfc01);
  CHECK(reduce1<uint16_t>(DataType::kBfloat16, RedOp::kAvg, {0xff81}) == 0xff81);
  CHECK(reduce1<uint8_t>(DataType::kFloat8e5m2, RedOp::kMin, {0xfd}) == 0xfd);
}
