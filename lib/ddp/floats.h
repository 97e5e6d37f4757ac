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
  // From the integer: a program may be set to take a float that is subnormal itself for zero.
  const auto subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(size)) * 0x1p-24f);
  const uint32_t normal = (size << 13) + (size < 0x7c00 ? (127 - 15) << 23 : (255 - 31) << 23);
  // A mask, because compilers turn a conditional into a branch and then do not vectorise.
  const uint32_t is_small = 0u - static_cast<uint32_t>(size < 0x400);
  return std::bit_cast<float>(sign | (subnormal & is_small) | (normal & ~is_small));
}

}  // namespace tutti::ddp
