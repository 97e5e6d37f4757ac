// Quantises blocks of floats to one byte per element, and back: plain loops, which each instruction set's translation
// unit compiles to its own vectors; the results do not depend on how. See QuantiseKernel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"

namespace tutti {
namespace {

// Loops run over whole pieces of 64 elements, padded with zeros, so that they have no remainders.
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
    for (size_t i = 0; i < whole; i++) largest = std::max(largest, magnitude_of(values[i]));
    const float scale = scale_of<Wire>(largest);
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
