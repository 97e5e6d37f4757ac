// The generated data are exact in every order: random trees of two-argument reductions, rounded after every step by
// this file's own arithmetic, all give the bits that the check expects.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "catch.h"
#include "data.h"
#include "floats.h"
#include "types.h"

using namespace tutti::perf;

namespace {

struct Format {
  bool is_float, is_signed;
  int exponent_bits, mantissa_bits;
};

Format format_of(tuttiDataType_t type) {
  switch (type) {
    case tuttiFloat16: return {true, true, 5, 10};
    case tuttiBfloat16: return {true, true, 8, 7};
    case tuttiFloat32: return {true, true, 8, 23};
    case tuttiFloat64: return {true, true, 11, 52};
    case tuttiFloat8e4m3: return {true, true, 4, 3};
    case tuttiFloat8e5m2: return {true, true, 5, 2};
    case tuttiUint8:
    case tuttiUint32:
    case tuttiUint64: return {false, false, 0, 0};
    default: return {false, true, 0, 0};
  }
}

// The nearest value of the format, ties to even, subnormals included. nearbyint rounds to even by default.
double round_to(const Format& f, double value) {
  if (value == 0) return value;
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int exponent = std::max(std::ilogb(value), 1 - bias);
  const double unit = std::ldexp(1.0, exponent - f.mantissa_bits);
  return std::nearbyint(value / unit) * unit;
}

double decode(const Format& f, uint64_t bits) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const uint64_t mantissa = bits & ((uint64_t{1} << f.mantissa_bits) - 1);
  const int field = static_cast<int>(bits >> f.mantissa_bits & ((1u << f.exponent_bits) - 1));
  const bool negative = bits >> (f.exponent_bits + f.mantissa_bits) & 1;
  const double significand = static_cast<double>(mantissa) / std::ldexp(1.0, f.mantissa_bits) + (field > 0 ? 1 : 0);
  const double magnitude = std::ldexp(significand, std::max(field, 1) - bias);
  return negative ? -magnitude : magnitude;
}

// The bits of a value that the format can represent: searched for in small formats, else from the machine's types.
uint64_t encode(const Format& f, double value) {
  if (f.mantissa_bits == 52) return std::bit_cast<uint64_t>(value);
  if (f.mantissa_bits == 23) return std::bit_cast<uint32_t>(static_cast<float>(value));
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const uint64_t sign = std::signbit(value) ? uint64_t{1} << (f.exponent_bits + f.mantissa_bits) : 0;
  if (value == 0) return sign;
  const int exponent = std::max(std::ilogb(value), 1 - bias);
  const auto units = static_cast<uint64_t>(std::ldexp(std::fabs(value), f.mantissa_bits - exponent));
  const uint64_t hidden = uint64_t{1} << f.mantissa_bits;
  const uint64_t field = units >= hidden ? static_cast<uint64_t>(exponent + bias) : 0;
  return sign | field << f.mantissa_bits | (units & (hidden - 1));
}

uint64_t load(const std::vector<char>& data, size_t index, size_t bytes) {
  uint64_t value = 0;
  memcpy(&value, data.data() + index * bytes, bytes);
  return value;
}

int64_t sign_extend(uint64_t value, size_t bytes) {
  const int shift = static_cast<int>(64 - 8 * bytes);
  return static_cast<int64_t>(value << shift) >> shift;
}

uint64_t combine_ints(bool is_signed, size_t bytes, int op, uint64_t a, uint64_t b) {
  const uint64_t mask = bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * bytes)) - 1;
  if (op == tuttiSum || op == tuttiAvg || op == kMulSum) return (a + b) & mask;
  if (op == tuttiProd) return (a * b) & mask;
  const bool less = is_signed ? sign_extend(a, bytes) < sign_extend(b, bytes) : a < b;
  return less == (op == tuttiMin) ? a : b;
}

uint64_t combine(const TypeInfo& type, int op, uint64_t a, uint64_t b) {
  const Format f = format_of(type.type);
  if (!f.is_float) return combine_ints(f.is_signed, type.bytes, op, a, b);
  const double x = decode(f, a), y = decode(f, b);
  if (op == tuttiProd) return encode(f, round_to(f, x * y));
  if (op == tuttiMin) return encode(f, std::min(x, y));
  if (op == tuttiMax) return encode(f, std::max(x, y));
  return encode(f, round_to(f, x + y));
}

uint64_t divide(const TypeInfo& type, uint64_t sum, int n) {
  const Format f = format_of(type.type);
  if (f.is_float) return encode(f, round_to(f, decode(f, sum) / n));
  if (!f.is_signed) return sum / static_cast<uint64_t>(n);
  return static_cast<uint64_t>(sign_extend(sum, type.bytes) / n);
}

using Inputs = std::vector<std::vector<char>>;

// The terms to be reduced: for kMulSum the rounded products.
Inputs inputs_of(const DataKey& key, size_t count) {
  const TypeInfo& type = type_info(key.type);
  Inputs inputs(static_cast<size_t>(key.n_ranks), std::vector<char>(count * type.bytes));
  for (int rank = 0; rank < key.n_ranks; rank++) {
    std::vector<char>& input = inputs[static_cast<size_t>(rank)];
    fill_input(key, rank, 0, count, input.data());
    if (key.op != kMulSum) continue;
    std::vector<char> scalar(type.bytes);
    fill_scalar(key, rank, scalar.data());
    for (size_t i = 0; i < count; i++) {
      const uint64_t product = combine(type, tuttiProd, load(input, i, type.bytes), load(scalar, 0, type.bytes));
      memcpy(input.data() + i * type.bytes, &product, type.bytes);
    }
  }
  return inputs;
}

// Joins two random partial results until one is left.
uint64_t reduce_in_random_order(const TypeInfo& type, int op, std::vector<uint64_t> values, std::mt19937& random) {
  while (values.size() > 1) {
    std::swap(values[random() % values.size()], values.back());
    const uint64_t a = values.back();
    values.pop_back();
    uint64_t& b = values[random() % values.size()];
    b = combine(type, op, a, b);
  }
  return values[0];
}

std::vector<char> reduce(const DataKey& key, const Inputs& inputs, size_t count, std::mt19937& random) {
  const TypeInfo& type = type_info(key.type);
  std::vector<char> result(count * type.bytes);
  for (size_t i = 0; i < count; i++) {
    std::vector<uint64_t> values;
    for (const auto& input : inputs) values.push_back(load(input, i, type.bytes));
    uint64_t bits = reduce_in_random_order(type, key.op, values, random);
    if (key.op == tuttiAvg) bits = divide(type, bits, key.n_ranks);
    memcpy(result.data() + i * type.bytes, &bits, type.bytes);
  }
  return result;
}

std::string describe(const DataKey& key) {
  return std::string(type_info(key.type).name) + " " + kOpNames[static_cast<size_t>(key.op)] + " " +
         std::to_string(key.n_ranks) + " ranks";
}

template <class Function>
void for_each_key(const std::vector<int>& rank_counts, Function f) {
  for (const TypeInfo& type : kTypes) {
    for (int op = 0; op <= kMulSum; op++) {
      for (const int n : rank_counts) f(DataKey{type.type, op, n, 17});
    }
  }
}

}  // namespace

TEST_CASE("the reduction has the same bits in every order, for every type and operator") {
  std::mt19937 random(1);
  for_each_key({1, 2, 3, 5, 8, 16, 33, 64, 200}, [&](const DataKey& key) {
    const size_t count = 50;
    const Inputs inputs = inputs_of(key, count);
    for (int order = 0; order < 4; order++) {
      INFO(describe(key));
      REQUIRE(count_wrong_reduction(key, 0, count, reduce(key, inputs, count, random).data()) == 0);
    }
  });
}

TEST_CASE("a rank that is left out is noticed") {
  std::mt19937 random(2);
  for_each_key({2, 3, 5, 8, 16}, [&](const DataKey& key) {
    const size_t count = 500;
    Inputs inputs = inputs_of(key, count);
    for (size_t rank = 0; rank < inputs.size(); rank++) {
      Inputs others = inputs;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(rank));
      INFO(describe(key) << ", without rank " << rank);
      REQUIRE(count_wrong_reduction(key, 0, count, reduce(key, others, count, random).data()) > 0);
    }
  });
}

TEST_CASE("a scalar that is not applied, or another rank's, is noticed") {
  for (const TypeInfo& type : kTypes) {
    for (const int n : {1, 2, 3, 8}) {
      const size_t count = 300;
      const DataKey key = {type.type, kMulSum, n, 3}, plain = {type.type, tuttiSum, n, 3};
      std::mt19937 random(6);
      Inputs inputs(static_cast<size_t>(n), std::vector<char>(count * type.bytes));
      for (int rank = 0; rank < n; rank++) fill_input(key, rank, 0, count, inputs[static_cast<size_t>(rank)].data());
      INFO(type.name << ", " << n << " ranks");
      CHECK(count_wrong_reduction(key, 0, count, reduce(plain, inputs, count, random).data()) > 0);
      char first[8], next[8];
      fill_scalar(key, 0, first);
      fill_scalar(key, 1, next);
      CHECK(memcmp(first, next, type.bytes) != 0);
    }
  }
}

TEST_CASE("each wrong element is counted once") {
  std::mt19937 random(3);
  for_each_key({2, 4}, [&](const DataKey& key) {
    const size_t count = 64, bytes = type_info(key.type).bytes;
    std::vector<char> result = reduce(key, inputs_of(key, count), count, random);
    for (const size_t i : {size_t{0}, size_t{31}, count - 1}) result[i * bytes + bytes - 1] ^= 0x40;
    INFO(describe(key));
    CHECK(count_wrong_reduction(key, 0, count, result.data()) == 3);
  });
}

TEST_CASE("averages over other numbers than powers of two may be two units off, and no more") {
  const DataKey key = {tuttiFloat32, tuttiAvg, 3, 5};
  std::mt19937 random(4);
  std::vector<char> result = reduce(key, inputs_of(key, 1), 1, random);
  const auto bits = static_cast<uint32_t>(load(result, 0, 4));
  for (const uint32_t off : {0u, 1u, 2u, 3u}) {
    const uint32_t moved = bits + off;
    CHECK(count_wrong_reduction(key, 0, 1, &moved) == (off <= 2 ? 0 : 1));
  }
}

TEST_CASE("copies are compared bit by bit and differ between ranks, elements and seeds") {
  for (const TypeInfo& type : kTypes) {
    const DataKey key = {type.type, kCopy, 4, 9};
    std::vector<char> data(100 * type.bytes);
    fill_input(key, 2, 10, 100, data.data());
    INFO(type.name);
    CHECK(count_wrong_copy(key, 2, 10, 100, data.data()) == 0);
    CHECK(count_wrong_copy(key, 1, 10, 100, data.data()) > 90);
    CHECK(count_wrong_copy(key, 2, 11, 100, data.data()) > 90);
    CHECK(count_wrong_copy({type.type, kCopy, 4, 10}, 2, 10, 100, data.data()) > 90);
    data[5 * type.bytes] ^= 1;
    CHECK(count_wrong_copy(key, 2, 10, 100, data.data()) == 1);
  }
}

TEST_CASE("blocks of all ranks are compared with the ranks' inputs in order") {
  const DataKey key = {tuttiFloat32, kCopy, 3, 11};
  const size_t count = 50, first = 7;
  std::vector<float> data(3 * count);
  for (const int rank : {0, 1, 2}) fill_input(key, rank, first, count, &data[static_cast<size_t>(rank) * count]);
  CHECK(count_wrong_blocks(key, first, count, data.data()) == 0);
  CHECK(count_wrong_blocks(key, first + 1, count, data.data()) > 140);
  std::vector<float> swapped(data.begin() + count, data.end());
  swapped.insert(swapped.end(), data.begin(), data.begin() + count);
  CHECK(count_wrong_blocks(key, first, count, swapped.data()) > 140);
  std::copy_n(data.begin(), count, data.begin() + 2 * count);
  const size_t wrong = count_wrong_blocks(key, first, count, data.data());
  CHECK(wrong <= count);
  CHECK(wrong > count - 5);
}

TEST_CASE("data may be misaligned and is the same in pieces") {
  const DataKey key = {tuttiFloat64, tuttiSum, 3, 1};
  std::vector<char> whole(20 * 8), shifted(20 * 8 + 1);
  fill_input(key, 1, 0, 20, whole.data());
  fill_input(key, 1, 0, 7, shifted.data() + 1);
  fill_input(key, 1, 7, 13, shifted.data() + 1 + 7 * 8);
  CHECK(memcmp(whole.data(), shifted.data() + 1, whole.size()) == 0);
}

TEST_CASE("encoding rounds to nearest even, subnormals included") {
  std::mt19937_64 random(5);
  const auto check = [](const Format& f, double value, uint64_t encoded) {
    INFO(value << " in e" << f.exponent_bits << "m" << f.mantissa_bits);
    REQUIRE(encoded == encode(f, round_to(f, value)));
  };
  for (int i = 0; i < 20000; i++) {
    // Exponents from below the smallest subnormal to near the largest number; a third of the values are ties.
    const double scale = std::ldexp(random() & 1 ? 1.0 : -1.0, static_cast<int>(random() % 22) - 14);
    const double fine = static_cast<double>(random() >> 11) * 0x1p-53, coarse = static_cast<double>(random() % 64) / 64;
    const double value = scale * (1 + (i % 3 == 0 ? coarse : fine));
    if (std::fabs(value) < 400) check(format_of(tuttiFloat8e4m3), value, F8e4m3::encode(value));
    check(format_of(tuttiFloat8e5m2), value, F8e5m2::encode(value));
    check(format_of(tuttiFloat16), value * 0x1p-8, Half::encode(value * 0x1p-8));
    check(format_of(tuttiBfloat16), value, Bfloat16::encode(value));
    check(format_of(tuttiFloat32), value, Single::encode(value));
    check(format_of(tuttiFloat64), value, Double::encode(value));
  }
}
