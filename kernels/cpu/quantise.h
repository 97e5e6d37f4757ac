// Floats in blocks that travel as one byte each, and back: plain loops, which each instruction set's translation unit
// compiles to its own vectors; no operation in them depends on how. See QuantiseKernel.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"

namespace tutti {
namespace {

inline uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}

struct Int8Wire {
  static constexpr float kLargest = 127;
  // At 1.5 * 2^23 the last bit stands for 1, so the CPU's addition rounds to nearest even.
  static uint8_t encode(float ratio) { return static_cast<uint8_t>(bits_of(ratio + 12582912.0f)); }
  static float decode(uint8_t code) { return static_cast<float>(static_cast<int8_t>(code)); }
};

struct E4m3Wire {
  static constexpr float kLargest = 448;
  static constexpr uint32_t kBias = 120u << 3, kSmallestNormal = 121u << 23, kEnd = 0x7e;
  static uint8_t encode(float ratio) {
    const uint32_t size = bits_of(ratio) & 0x7fffffffu, sign = bits_of(ratio) >> 24 & 0x80;
    const uint32_t normal = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - kBias;
    // At 2^14 the last bit stands for 2^-9, as in a subnormal.
    const uint32_t subnormal = bits_of(std::bit_cast<float>(size) + 16384.0f) - bits_of(16384.0f);
    const uint32_t is_small = 0u - static_cast<uint32_t>(size < kSmallestNormal);  // as in decode()
    const uint32_t code = (subnormal & is_small) | (normal & ~is_small);
    return static_cast<uint8_t>(sign | (code < kEnd ? code : kEnd));
  }
  static float decode(uint8_t code) {
    const uint32_t size = code & 0x7fu, sign = (code & 0x80u) << 24;
    const float subnormal = static_cast<float>(static_cast<int32_t>(size)) * 0x1p-9f;
    // By a mask: for a choice compilers make a branch, and no vectors.
    const uint32_t is_small = 0u - static_cast<uint32_t>(size < 8);
    const uint32_t magnitude = (bits_of(subnormal) & is_small) | (((size << 20) + (120u << 23)) & ~is_small);
    return std::bit_cast<float>(sign | magnitude);
  }
};

// Loops are over whole pieces of 64 elements, filled up with zeros, so that they have no ends.
template <class Wire>
void quantise(const void* from, size_t elems, size_t block_elems, void* to) {
  const char* in = static_cast<const char*>(from);
  char* out = static_cast<char*>(to);
  for (size_t at = 0; at < elems; at += block_elems) {
    const size_t n = std::min(block_elems, elems - at), whole = (n + 63) / 64 * 64;
    float values[kMostBlockElems];
    uint8_t codes[kMostBlockElems];
    std::memcpy(values, in, n * sizeof(float));
    std::memset(values + n, 0, (whole - n) * sizeof(float));
    uint32_t largest = 0;
    for (size_t i = 0; i < whole; i++) largest = std::max(largest, bits_of(values[i]) & 0x7fffffffu);
    float scale = std::bit_cast<float>(0x7fc00000u);
    if (largest <= bits_of(kQuantisableTo)) scale = std::bit_cast<float>(largest) / Wire::kLargest;
    if (largest < bits_of(kQuantisableFrom)) scale = 0;
    if (scale > 0)
      for (size_t i = 0; i < whole; i++) codes[i] = Wire::encode(values[i] / scale);
    else
      std::memset(codes, 0, whole);
    std::memcpy(out, &scale, sizeof scale);
    std::memcpy(out + sizeof scale, codes, n);
    in += n * sizeof(float);
    out += sizeof scale + n;
  }
}

template <class Wire>
void dequantise(const void* from, size_t elems, size_t block_elems, void* to, bool adds) {
  const char* in = static_cast<const char*>(from);
  char* out = static_cast<char*>(to);
  for (size_t at = 0; at < elems; at += block_elems) {
    const size_t n = std::min(block_elems, elems - at), whole = (n + 63) / 64 * 64;
    float scale, values[kMostBlockElems] = {};
    uint8_t codes[kMostBlockElems] = {};
    std::memcpy(&scale, in, sizeof scale);
    std::memcpy(codes, in + sizeof scale, n);
    if (adds) {
      std::memcpy(values, out, n * sizeof(float));
      for (size_t i = 0; i < whole; i++) values[i] += Wire::decode(codes[i]) * scale;
    } else {
      for (size_t i = 0; i < whole; i++) values[i] = Wire::decode(codes[i]) * scale;
    }
    std::memcpy(out, values, n * sizeof(float));
    in += sizeof scale + n;
    out += n * sizeof(float);
  }
}

inline void fill_quantise(KernelTable& table) {
  table.quantise[0] = quantise<Int8Wire>;
  table.quantise[1] = quantise<E4m3Wire>;
  table.dequantise[0] = dequantise<Int8Wire>;
  table.dequantise[1] = dequantise<E4m3Wire>;
}

}  // namespace
}  // namespace tutti
