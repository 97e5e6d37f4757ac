// Conversion to 16-bit floats and back, rounding to nearest even. Branch-free in the value, so that loops over these
// functions are vectorised.
#pragma once

#include <bit>
#include <cstdint>

namespace tutti::ddp {

inline uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40 : rounded);
}

inline float from_bfloat16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

inline uint16_t to_float16(float value) {
  constexpr uint32_t kInfinity = 0x7f800000, kSmallestNormal = (127 - 14) << 23, kTooLarge = 0x477ff000;  // 65520
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
  // The sum's last bit stands for 2^-24, so the CPU's addition rounds exactly as a subnormal must be rounded.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000;
  const uint32_t normal = (size - ((127 - 15) << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
  const uint32_t large = size > kInfinity ? 0x7e00 : 0x7c00;
  return static_cast<uint16_t>(sign | (size >= kTooLarge ? large : size < kSmallestNormal ? subnormal : normal));
}

inline float from_float16(uint16_t bits) {
  const uint32_t size = uint32_t{bits} & 0x7fff, sign = (uint32_t{bits} & 0x8000) << 16;
  // The exponent biases differ by 112; multiplying converts subnormals correctly, too.
  const auto scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(size << 13) * 0x1p112f);
  const uint32_t special = 0x7f800000 | (size << 13);
  return std::bit_cast<float>(sign | (size >= 0x7c00 ? special : scaled));
}

}  // namespace tutti::ddp
