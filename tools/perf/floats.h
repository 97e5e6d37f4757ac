// Floating-point formats as bits, for exact comparison. Only finite values are ever encoded here.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tutti::perf {

template <class BitsT, int kExponentBitsV, int kMantissaBitsV>
struct Float {
  using Bits = BitsT;
  static constexpr int kMantissaBits = kMantissaBitsV;
  static constexpr int kBias = (1 << (kExponentBitsV - 1)) - 1;
  static constexpr int kSignShift = kExponentBitsV + kMantissaBitsV;

  // Rounds to nearest even, to subnormals and zero if necessary; overflow is the caller's mistake.
  static Bits encode(double value) {
    const auto from = std::bit_cast<uint64_t>(value);
    const Bits sign = static_cast<Bits>((from >> 63) << kSignShift);
    const int from_exponent = static_cast<int>((from >> 52) & 0x7ff);
    if constexpr (kMantissaBits == 52) return static_cast<Bits>(from);
    if (from_exponent == 0) return sign;  // even a double's subnormals are far below the narrower formats
    const int exponent = from_exponent - 1023 + kBias;
    const int shift = 52 - kMantissaBits + std::max(0, 1 - exponent);
    if (shift > 54) return sign;
    const uint64_t significand = (from & ((1ull << 52) - 1)) | 1ull << 52;
    const uint64_t below_half = shift == 0 ? 0 : (1ull << (shift - 1)) - 1 + ((significand >> shift) & 1);
    const uint64_t rounded = (significand + below_half) >> shift;
    // The significand's leading 1 adds one to the exponent field, and a carry from rounding does so again.
    const auto field = static_cast<uint64_t>(std::max(exponent, 1) - 1) << kMantissaBits;
    return static_cast<Bits>(sign | static_cast<Bits>(field + rounded));
  }

  // Distance in units in the last place.
  static uint64_t ulps(Bits a, Bits b) {
    const int64_t x = ordered(a), y = ordered(b);
    return x > y ? static_cast<uint64_t>(x) - static_cast<uint64_t>(y)
                 : static_cast<uint64_t>(y) - static_cast<uint64_t>(x);
  }

 private:
  static int64_t ordered(Bits bits) {
    const auto magnitude = static_cast<int64_t>(bits & ((uint64_t{1} << kSignShift) - 1));
    return bits >> kSignShift & 1 ? -magnitude : magnitude;
  }
};

using Half = Float<uint16_t, 5, 10>;
using Single = Float<uint32_t, 8, 23>;
using Double = Float<uint64_t, 11, 52>;
using Bfloat16 = Float<uint16_t, 8, 7>;
using F8e4m3 = Float<uint8_t, 4, 3>;
using F8e5m2 = Float<uint8_t, 5, 2>;

}  // namespace tutti::perf
