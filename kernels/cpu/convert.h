// Conversions between float and the 16- and 8-bit floats, one element at a time: the definition that the vector code
// must match bit by bit. Rounding is to nearest even. Constant expressions; independent of the FPU's flush-to-zero
// mode.
//
//             exponent  mantissa  infinities  beyond the largest finite value
//   half          5        10        yes      infinity
//   bfloat16      8         7        yes      infinity
//   f8e5m2        5         2        yes      saturates to 57344; only infinity itself stays infinity, so that the
//                                             minimum or maximum is always one of its inputs
//   f8e4m3        4         3        no       saturates to 448 (OCP "e4m3fn": 0x7f and 0xff are NaN)
//
// Any NaN becomes the one NaN kNan (all bits except the sign), so that results do not depend on which of several NaNs
// the hardware keeps.
#pragma once

#include <bit>
#include <cstdint>

namespace tutti {

template <int kExponentBits, int kMantissaBits, bool kHasInfinity, bool kSaturates>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kSign = 1u << (kExponentBits + kMantissaBits);
  static constexpr uint32_t kNan = kSign - 1;
  // The code above the largest finite one.
  static constexpr uint32_t kEnd = kHasInfinity ? kNan - (1u << kMantissaBits) + 1 : kNan;

  static constexpr float to_float(uint32_t code) {
    const uint32_t sign = code & kSign ? 0x80000000u : 0;
    const uint32_t magnitude = code & (kSign - 1);
    const uint32_t exponent = magnitude >> kMantissaBits;
    if (magnitude >= kEnd) return std::bit_cast<float>(sign | 0x7f800000u | magnitude << (23 - kMantissaBits));
    if (exponent != 0 || kBias == 127) {  // same exponents as float: denormals too are the float's upper bits
      return std::bit_cast<float>(sign |
                                  ((magnitude << (23 - kMantissaBits)) + (static_cast<uint32_t>(127 - kBias) << 23)));
    }
    const float unit = std::bit_cast<float>(static_cast<uint32_t>(128 - kBias - kMantissaBits) << 23);
    const float value = static_cast<float>(magnitude) * unit;
    return sign ? -value : value;
  }

  static constexpr uint32_t from_float(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = bits >> 31 ? kSign : 0;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return kNan;
    if (magnitude == 0x7f800000u) return sign | (kHasInfinity ? kEnd : kEnd - 1);
    const uint32_t code = round_finite(magnitude);
    if (code < kEnd) return sign | code;
    return sign | (kSaturates ? kEnd - 1 : kEnd);
  }

 private:
  static constexpr uint32_t round_finite(uint32_t magnitude) {
    const int float_exponent = static_cast<int>(magnitude >> 23);
    const uint32_t significand = (magnitude & 0x7fffffu) | (float_exponent ? 0x800000u : 0);
    const int exponent = (float_exponent ? float_exponent : 1) - 127 + kBias;
    // Below the smallest normal number the unit in the last place stays the same, so more bits are dropped.
    const int dropped = 23 - kMantissaBits + (exponent < 1 ? 1 - exponent : 0);
    if (dropped > 24) return 0;
    const uint32_t odd = (significand >> dropped) & 1;
    const uint32_t rounded = (significand + (1u << (dropped - 1)) - 1 + odd) >> dropped;
    // A carry out of the mantissa lands in the exponent, where it belongs.
    return rounded + (exponent > 1 ? static_cast<uint32_t>(exponent - 1) << kMantissaBits : 0);
  }
};

using Half = SmallFloat<5, 10, true, false>;
using Bfloat16 = SmallFloat<8, 7, true, false>;
using Float8e5m2 = SmallFloat<5, 2, true, true>;
using Float8e4m3 = SmallFloat<4, 3, false, true>;

}  // namespace tutti
