// Conversions between numbers. Floats of 8 and 16 bits are computed from the definitions of their formats,
// independently of the library's conversions.
#include <array>
#include <cfenv>
#include <limits>

#include "cells.h"

namespace tutti_test::ptx {
namespace {

struct Format {
  int exponent_bits, mantissa_bits;
  bool has_infinity;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t sign() const { return 1u << (exponent_bits + mantissa_bits); }
  // The first code above all finite numbers.
  uint32_t top() const { return has_infinity ? ((1u << exponent_bits) - 1) << mantissa_bits : sign() - 1; }
};
constexpr Format kHalf{5, 10, true}, kBfloat{8, 7, true}, kE4m3{4, 3, false}, kE5m2{5, 2, true};
constexpr uint32_t kNan16 = 0x7fff, kNan8 = 0x7f;

float value_of(uint32_t code, const Format& f) {
  const uint32_t rest = code & (f.sign() - 1), fraction = rest & ((1u << f.mantissa_bits) - 1);
  const auto exponent = static_cast<int>(rest >> f.mantissa_bits);
  float value = 0;
  if (rest >= f.top()) {
    value = f.has_infinity && rest == f.top() ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(fraction), 1 - f.bias() - f.mantissa_bits);
  } else {
    value = std::ldexp(static_cast<float>(fraction + (1u << f.mantissa_bits)), exponent - f.bias() - f.mantissa_bits);
  }
  return (code & f.sign()) != 0 ? -value : value;
}

// Rounds to nearest, ties to even.
uint32_t code_of(double value, const Format& f, bool saturates, uint32_t nan) {
  if (value != value) return nan;
  const uint32_t sign = std::signbit(value) ? f.sign() : 0, end = saturates ? f.top() - 1 : f.top();
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return sign | end;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), 1 - f.bias());
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent)));
  const uint32_t code = units + (static_cast<uint32_t>(exponent + f.bias() - 1) << f.mantissa_bits);
  return sign | std::min(code, code < f.top() ? code : end);
}

template <size_t kCodes>
std::array<float, kCodes> all_values(const Format& f) {
  std::array<float, kCodes> values;
  for (uint32_t code = 0; code < kCodes; code++) values[code] = value_of(code, f);
  return values;
}

void half_to_float(Warp& w, const Instruction& i) {
  static const auto kValues = all_values<65536>(kHalf);
  auto* const d = w.row<uint32_t>(i.operands[0]);
  const auto* const a = w.row<uint32_t>(i.operands[1]);
  w.each_lane([&](uint32_t l) { d[l] = to_cell(kValues[a[l] & 0xffff]); });
}

template <const Format& kFormat>
void float_to_16(Warp& w, const Instruction& i) {
  auto* const d = w.row<uint32_t>(i.operands[0]);
  const auto* const a = w.row<uint32_t>(i.operands[1]);
  w.each_lane([&](uint32_t l) { d[l] = code_of(from_cell<float>(a[l]), kFormat, false, kNan16); });
}

template <const Format& kFormat>
void two_from_8(Warp& w, const Instruction& i) {
  static const auto kValues = all_values<256>(kFormat);
  auto* const d = w.row<uint32_t>(i.operands[0]);
  const auto* const a = w.row<uint32_t>(i.operands[1]);
  w.each_lane([&](uint32_t l) {
    const uint32_t low = code_of(kValues[a[l] & 255], kHalf, false, kNan16);
    d[l] = low | code_of(kValues[a[l] >> 8 & 255], kHalf, false, kNan16) << 16;
  });
}

template <const Format& kFormat>
void two_to_8(Warp& w, const Instruction& i) {
  auto* const d = w.row<uint32_t>(i.operands[0]);
  const auto *const high = w.row<uint32_t>(i.operands[1]), *const low = w.row<uint32_t>(i.operands[2]);
  w.each_lane([&](uint32_t l) {
    d[l] = code_of(from_cell<float>(high[l]), kFormat, true, kNan8) << 8 |
           code_of(from_cell<float>(low[l]), kFormat, true, kNan8);
  });
}

// From a double, which holds the number exactly unless it is too large for 16 bits anyway.
template <const Format& kFormat, class From>
void number_to_16(Warp& w, const Instruction& i) {
  auto* const d = w.row<uint32_t>(i.operands[0]);
  const auto* const a = w.row<CellOf<From>>(i.operands[1]);
  w.each_lane([&](uint32_t l) { d[l] = code_of(static_cast<double>(from_cell<From>(a[l])), kFormat, false, kNan16); });
}

template <const Format& kFormat>
void two_halves_to_8(Warp& w, const Instruction& i) {
  auto* const d = w.row<uint32_t>(i.operands[0]);
  const auto* const a = w.row<uint32_t>(i.operands[1]);
  const auto code = [](uint32_t half) { return code_of(value_of(half & 0xffff, kHalf), kFormat, true, kNan8); };
  w.each_lane([&](uint32_t l) { d[l] = code(a[l] >> 16) << 8 | code(a[l]); });
}

// A float is wide enough that rounding 16-bit sums and products a second time does no harm.
template <const Format& kFormat, class Does>
void binary_16(Warp& w, const Instruction& i) {
  auto* const d = w.row<uint32_t>(i.operands[0]);
  const auto *const a = w.row<uint32_t>(i.operands[1]), *const b = w.row<uint32_t>(i.operands[2]);
  w.each_lane([&](uint32_t l) {
    const float first = value_of(a[l] & 0xffff, kFormat), second = value_of(b[l] & 0xffff, kFormat);
    d[l] = code_of(Does()(first, second), kFormat, false, kNan16);
  });
}
struct Sum {
  float operator()(float a, float b) const { return a + b; }
};
struct Product {
  float operator()(float a, float b) const { return a * b; }
};
// Of a number and a NaN it is the number; minus zero is less than zero.
struct Lesser {
  float operator()(float a, float b) const {
    if (a != a || b != b) return a != a ? b : a;
    return a < b || (a == b && std::signbit(a)) ? a : b;
  }
};
struct Greater16 {
  float operator()(float a, float b) const {
    if (a != a || b != b) return a != a ? b : a;
    return a > b || (a == b && !std::signbit(a)) ? a : b;
  }
};

template <const Format& kFormat>
void add_16(Names* names, const std::string& type) {
  add_name(names, "add." + type, binary_16<kFormat, Sum>);
  add_name(names, "mul." + type, binary_16<kFormat, Product>);
  add_name(names, "min." + type, binary_16<kFormat, Lesser>);
  add_name(names, "max." + type, binary_16<kFormat, Greater16>);
}

// Towards zero or to nearest, clamped to the integers that exist; NaN becomes 0, or the top bit for 64 bits.
template <class To>
void truncate(Warp& w, const Instruction& i) {
  auto* const d = w.row<CellOf<To>>(i.operands[0]);
  const auto* const a = w.row<uint32_t>(i.operands[1]);
  w.each_lane([&](uint32_t l) {
    const float value = from_cell<float>(a[l]);
    constexpr auto kMost = std::numeric_limits<To>::max(), kLeast = std::numeric_limits<To>::min();
    To result = 0;
    if (value != value)
      result = sizeof(To) == 8 ? static_cast<To>(uint64_t{1} << 63) : To{0};
    else if (value >= static_cast<float>(kMost))
      result = kMost;
    else if (value <= static_cast<float>(kLeast))
      result = kLeast;
    else
      result = static_cast<To>(value);
    d[l] = to_cell<To>(result);
  });
}

template <class To, class From>
void convert(Warp& w, const Instruction& i) {
  auto* const d = w.row<CellOf<To>>(i.operands[0]);
  const auto* const a = w.row<CellOf<From>>(i.operands[1]);
  w.each_lane([&](uint32_t l) { d[l] = to_cell<To>(static_cast<To>(from_cell<From>(a[l]))); });
}

// Registers may be wider than the integers in them; then the result is sign-extended.
template <class To, class From>
void convert_integer(Warp& w, const Instruction& i) {
  const Operand &to = i.operands[0], &from = i.operands[1];
  if (to.is_wide == (sizeof(To) == 8) && (from.is_constant || from.is_wide == (sizeof(From) == 8)))
    return convert<To, From>(w, i);
  w.each_lane([&](uint32_t l) {
    const auto value = static_cast<To>(static_cast<From>(w.value(from, l)));
    w.set(to, l,
          std::is_signed_v<To> ? static_cast<uint64_t>(static_cast<int64_t>(value)) : static_cast<uint64_t>(value));
  });
}

template <class To>
void add_to(Names* names, const std::string& to) {
  const std::string name = "cvt." + to + ".";
  add_name(names, name + "s8", convert_integer<To, int8_t>);
  add_name(names, name + "u8", convert_integer<To, uint8_t>);
  add_name(names, name + "s16", convert_integer<To, int16_t>);
  add_name(names, name + "u16", convert_integer<To, uint16_t>);
  add_name(names, name + "s32", convert_integer<To, int32_t>);
  add_name(names, name + "u32", convert_integer<To, uint32_t>);
  add_name(names, name + "s64", convert_integer<To, int64_t>);
  add_name(names, name + "u64", convert_integer<To, uint64_t>);
}

}  // namespace

void add_conversions(Names* names) {
  add_to<int8_t>(names, "s8");
  add_to<uint8_t>(names, "u8");
  add_to<int16_t>(names, "s16");
  add_to<uint16_t>(names, "u16");
  add_to<int32_t>(names, "s32");
  add_to<uint32_t>(names, "u32");
  add_to<int64_t>(names, "s64");
  add_to<uint64_t>(names, "u64");
  add_name(names, "cvt.f64.f32", convert<double, float>);
  add_name(names, "cvt.rn.f32.f64", convert<float, double>);
  add_name(names, "cvt.rn.f32.u32", convert<float, uint32_t>);
  add_name(names, "cvt.rn.f64.u32", convert<double, uint32_t>);
  add_name(names, "cvt.rn.f32.s32", convert<float, int32_t>);
  add_name(names, "cvt.rn.f32.s16", convert<float, int16_t>);
  add_name(names, "cvt.rn.f32.u16", convert<float, uint16_t>);
  add_name(names, "cvt.rn.f64.s32", convert<double, int32_t>);
  add_name(names, "cvt.rn.f32.u64", convert<float, uint64_t>);
  add_name(names, "cvt.rn.f64.u64", convert<double, uint64_t>);
  add_name(names, "cvt.rzi.s32.f32", truncate<int32_t>);
  add_name(names, "cvt.rzi.u32.f32", truncate<uint32_t>);
  add_name(names, "cvt.rzi.s64.f32", truncate<int64_t>);
  add_name(names, "cvt.rzi.u64.f32", truncate<uint64_t>);
  add_name(names, "cvt.rn.f16.u64", number_to_16<kHalf, uint64_t>);
  add_name(names, "cvt.rn.bf16.f64", number_to_16<kBfloat, double>);
  add_name(names, "cvt.rn.satfinite.e4m3x2.f16x2", two_halves_to_8<kE4m3>);
  add_name(names, "cvt.rn.satfinite.e5m2x2.f16x2", two_halves_to_8<kE5m2>);
  add_16<kHalf>(names, "f16");
  add_16<kBfloat>(names, "bf16");
  add_name(names, "cvt.f32.f16", half_to_float);
  add_name(names, "cvt.rn.f16.f32", float_to_16<kHalf>);
  add_name(names, "cvt.rn.bf16.f32", float_to_16<kBfloat>);
  add_name(names, "cvt.rn.f16x2.e4m3x2", two_from_8<kE4m3>);
  add_name(names, "cvt.rn.f16x2.e5m2x2", two_from_8<kE5m2>);
  add_name(names, "cvt.rn.satfinite.e4m3x2.f32", two_to_8<kE4m3>);
  add_name(names, "cvt.rn.satfinite.e5m2x2.f32", two_to_8<kE5m2>);
}

}  // namespace tutti_test::ptx
