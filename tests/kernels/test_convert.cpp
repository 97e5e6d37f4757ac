// The small floats' conversions, against values computed in double from the formats' definitions.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "catch.h"
#include "kernels/cpu/convert.h"

using namespace tutti;

namespace {

struct Definition {
  int exponent_bits, mantissa_bits, bias;
  uint32_t largest;  // code of the largest finite value
  bool has_infinity, saturates;
};
constexpr Definition kHalf{5, 10, 15, 0x7bff, true, false};
constexpr Definition kBfloat16{8, 7, 127, 0x7f7f, true, false};
constexpr Definition kE5m2{5, 2, 15, 0x7b, true, true};
constexpr Definition kE4m3{4, 3, 7, 0x7e, false, true};

double value_of(const Definition& def, uint32_t magnitude) {
  const int mantissa = static_cast<int>(magnitude & ((1u << def.mantissa_bits) - 1));
  const int exponent = static_cast<int>(magnitude >> def.mantissa_bits);
  const int units = exponent ? mantissa + (1 << def.mantissa_bits) : mantissa;
  return std::ldexp(units, (exponent ? exponent : 1) - def.bias - def.mantissa_bits);
}

uint32_t sign_bit(const Definition& def) {
  return 1u << (def.exponent_bits + def.mantissa_bits);
}

// The code of the nearest value, found by bisection; the even one of two equally near.
uint32_t nearest(const Definition& def, float value) {
  const uint32_t sign = std::signbit(value) ? sign_bit(def) : 0;
  if (std::isnan(value)) return sign_bit(def) - 1;
  const double magnitude = std::fabs(static_cast<double>(value));
  const uint32_t infinity = def.largest + 1;
  if (std::isinf(value)) return sign | (def.has_infinity ? infinity : def.largest);
  uint32_t below = 0, above = infinity;  // `infinity` as if it were the next finite code
  while (above - below > 1) {
    const uint32_t middle = (below + above) / 2;
    (value_of(def, middle) <= magnitude ? below : above) = middle;
  }
  const double low = magnitude - value_of(def, below), high = value_of(def, above) - magnitude;
  const bool up = high < low || (high == low && above % 2 == 0);
  const uint32_t code = up ? above : below;
  return sign | (code > def.largest && def.saturates ? def.largest : code);
}

uint32_t float_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class Format>
int wrong_decodes(const Definition& def) {
  int wrong = 0;
  for (uint32_t code = 0; code < 2 * sign_bit(def); ++code) {
    const uint32_t magnitude = code & (sign_bit(def) - 1);
    const float got = Format::to_float(code);
    if (magnitude > def.largest) {
      const bool infinity = def.has_infinity && magnitude == def.largest + 1;
      wrong += infinity ? !std::isinf(got) : !std::isnan(got);
    } else {
      wrong += static_cast<double>(std::fabs(got)) != value_of(def, magnitude);
    }
    wrong += std::signbit(got) != (code >= sign_bit(def));
    const bool nan = std::isnan(got);
    wrong += Format::from_float(got) != (nan ? sign_bit(def) - 1 : code);
  }
  return wrong;
}

// Every boundary between two codes and its neighbours on both sides, and random bits.
template <class Format>
int wrong_encodes(const Definition& def) {
  std::vector<float> values = {0.0f, 1e-45f, 3.4e38f, INFINITY, NAN};
  for (uint32_t code = 0; code <= def.largest; ++code) {
    const float tie = static_cast<float>((value_of(def, code) + value_of(def, code + 1)) / 2);
    values.insert(values.end(), {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, INFINITY)});
  }
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) values.push_back(from_bits(static_cast<uint32_t>(random())));
  int wrong = 0;
  for (const float value : values) {
    wrong += Format::from_float(value) != nearest(def, value);
    wrong += Format::from_float(-value) != nearest(def, -value);
  }
  return wrong;
}

}  // namespace

TEST_CASE("every code of the small floats decodes and encodes back") {
  CHECK(wrong_decodes<Half>(kHalf) == 0);
  CHECK(wrong_decodes<Bfloat16>(kBfloat16) == 0);
  CHECK(wrong_decodes<Float8e5m2>(kE5m2) == 0);
  CHECK(wrong_decodes<Float8e4m3>(kE4m3) == 0);
}

TEST_CASE("floats round to the nearest small float, ties to even") {
  CHECK(wrong_encodes<Half>(kHalf) == 0);
  CHECK(wrong_encodes<Bfloat16>(kBfloat16) == 0);
  CHECK(wrong_encodes<Float8e5m2>(kE5m2) == 0);
  CHECK(wrong_encodes<Float8e4m3>(kE4m3) == 0);
}

TEST_CASE("known codes") {
  CHECK(float_bits(Half::to_float(0x3c00)) == float_bits(1.0f));
  CHECK(Half::to_float(0x0001) == 5.9604644775390625e-8f);
  CHECK(Half::from_float(65504.0f) == 0x7bff);
  CHECK(Half::from_float(65519.0f) == 0x7bff);
  CHECK(Half::from_float(65520.0f) == 0x7c00);
  CHECK(Half::from_float(-0.0f) == 0x8000);
  CHECK(Bfloat16::from_float(1.0f) == 0x3f80);
  CHECK(Bfloat16::from_float(3.4e38f) == 0x7f80);
  CHECK(Float8e4m3::to_float(0x7e) == 448.0f);
  CHECK(Float8e4m3::from_float(1e9f) == 0x7e);
  CHECK(Float8e4m3::from_float(-INFINITY) == 0xfe);
  CHECK(Float8e4m3::from_float(NAN) == 0x7f);
  CHECK(Float8e5m2::to_float(0x7b) == 57344.0f);
  CHECK(Float8e5m2::from_float(1e9f) == 0x7b);
  CHECK(Float8e5m2::from_float(-INFINITY) == 0xfc);
}
