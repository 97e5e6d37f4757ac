// How a block of floats is quantised to a scale and one byte per element (QuantiseKernel, kernels.h). CPU and GPU share
// this, so both give the same bits; no operation in it depends on how it is compiled.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/target.h"

namespace tutti {

inline constexpr size_t kMostBlockElems = 256;
inline constexpr float kQuantisableFrom = 0x1p-100f, kQuantisableTo = 0x1p127f;
__host__ __device__ constexpr size_t quantised_bytes(size_t elems, size_t block_elems) {
  return elems + (elems + block_elems - 1) / block_elems * sizeof(float);
}

__host__ __device__ inline uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}
__host__ __device__ inline uint32_t magnitude_of(float value) {
  return bits_of(value) & 0x7fffffffu;
}

struct Int8Wire {
  static constexpr float kLargest = 127;
  // At 1.5 * 2^23 the last bit has the value 1, so the addition rounds to nearest even.
  __host__ __device__ static uint8_t encode(float ratio) { return static_cast<uint8_t>(bits_of(ratio + 12582912.0f)); }
  __host__ __device__ static float decode(uint8_t code) { return static_cast<float>(static_cast<int8_t>(code)); }
};

struct E4m3Wire {
  static constexpr float kLargest = 448;
  static constexpr uint32_t kBias = 120u << 3, kSmallestNormal = 121u << 23, kEnd = 0x7e;
  __host__ __device__ static uint8_t encode(float ratio) {
    const uint32_t size = magnitude_of(ratio), sign = bits_of(ratio) >> 24 & 0x80;
    const uint32_t normal = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - kBias;
    // At 2^14 the last bit has the value 2^-9, as in a subnormal.
    const uint32_t subnormal = bits_of(std::bit_cast<float>(size) + 16384.0f) - bits_of(16384.0f);
    const uint32_t is_small = 0u - static_cast<uint32_t>(size < kSmallestNormal);  // as in decode()
    const uint32_t code = (subnormal & is_small) | (normal & ~is_small);
    return static_cast<uint8_t>(sign | (code < kEnd ? code : kEnd));
  }
  __host__ __device__ static float decode(uint8_t code) {
    const uint32_t size = code & 0x7fu, sign = (code & 0x80u) << 24;
    const float subnormal = static_cast<float>(static_cast<int32_t>(size)) * 0x1p-9f;
    // A mask, because compilers turn a conditional into a branch and then do not vectorise.
    const uint32_t is_small = 0u - static_cast<uint32_t>(size < 8);
    const uint32_t magnitude = (bits_of(subnormal) & is_small) | (((size << 20) + (120u << 23)) & ~is_small);
    return std::bit_cast<float>(sign | magnitude);
  }
};

// The scale of a block with this largest magnitude_of(): NaN if it cannot be quantised, 0 if it is rounded to zeros.
template <class Wire>
__host__ __device__ float scale_of(uint32_t largest) {
  if (largest > bits_of(kQuantisableTo)) return std::bit_cast<float>(0x7fc00000u);
  return largest < bits_of(kQuantisableFrom) ? 0 : std::bit_cast<float>(largest) / Wire::kLargest;
}

// What a result loses of a value that counts `times` times and has arrived as `arrived`. A loss that is not finite is
// not compensated.
__host__ __device__ inline float residual_of(float value, float arrived, float times) {
  const float lost = (value - arrived) * times;
  return lost - lost == 0 ? lost : 0;
}

}  // namespace tutti
