// AVX-512 F, BW, DQ, VL: the primitives for simd.h, for the translation units of the sets that have these.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/vector.h"

namespace tutti {
namespace {

inline constexpr size_t kVectorBytes = 64;
// Types that are only loaded, added and stored are bound by memory, where half lines were 10-13 % faster (Zen 4).
inline constexpr size_t kPlainBytes = 32;
using Floats = Vector<float, kVectorBytes>;
using Words = Vector<uint32_t, kVectorBytes>;
using Halfs = Vector<uint16_t, kVectorBytes / 2>;
using Codes = Vector<uint8_t, kVectorBytes / 4>;

// The forms without a mask read an undefined register, about which gcc warns.
constexpr __mmask16 kAll = 0xffff;

inline Words widen(Codes codes) {
  return reinterpret_cast<Words>(_mm512_maskz_cvtepu8_epi32(kAll, reinterpret_cast<__m128i>(codes)));
}
inline void narrow(Words words, Codes& out) {
  out = reinterpret_cast<Codes>(_mm512_maskz_cvtepi32_epi8(kAll, reinterpret_cast<__m512i>(words)));
}

inline Floats decode_half(Halfs halfs) {
  return reinterpret_cast<Floats>(_mm512_maskz_cvtph_ps(kAll, reinterpret_cast<__m256i>(halfs)));
}

inline Halfs encode_half(Floats floats) {
  return reinterpret_cast<Halfs>(
      _mm512_maskz_cvtps_ph(kAll, reinterpret_cast<__m512>(floats), _MM_FROUND_TO_NEAREST_INT));
}

template <class V>
inline void stream(char* to, V value) {
  if constexpr (sizeof value == 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(value));
  if constexpr (sizeof value == 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(value));
  if constexpr (sizeof value == 16) _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(value));
}

inline void stream_fence() {
  _mm_sfence();
}

inline uint64_t first(size_t bytes) {
  return (uint64_t{1} << bytes) - 1;
}

template <class V>
inline V load_part(const char* from, size_t bytes) {
  if constexpr (sizeof(V) == 64) return reinterpret_cast<V>(_mm512_maskz_loadu_epi8(first(bytes), from));
  if constexpr (sizeof(V) == 32) {
    return reinterpret_cast<V>(_mm256_maskz_loadu_epi8(static_cast<__mmask32>(first(bytes)), from));
  }
  if constexpr (sizeof(V) == 16) {
    return reinterpret_cast<V>(_mm_maskz_loadu_epi8(static_cast<__mmask16>(first(bytes)), from));
  }
}

template <class V>
inline void store_part(char* to, V value, size_t bytes) {
  if constexpr (sizeof value == 64) _mm512_mask_storeu_epi8(to, first(bytes), reinterpret_cast<__m512i>(value));
  if constexpr (sizeof value == 32) {
    _mm256_mask_storeu_epi8(to, static_cast<__mmask32>(first(bytes)), reinterpret_cast<__m256i>(value));
  }
  if constexpr (sizeof value == 16) {
    _mm_mask_storeu_epi8(to, static_cast<__mmask16>(first(bytes)), reinterpret_cast<__m128i>(value));
  }
}

}  // namespace
}  // namespace tutti
