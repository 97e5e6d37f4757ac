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

// The instruction takes -0 to be less than +0. Two sources of 4 KiB, without it: floats 99 -> 85 ns, bfloat16 292 ->
// 225 (Xeon).
inline constexpr int kRangeMin = 4, kRangeMax = 5;
template <bool kLargest>
inline Vector<float, 64> extreme(Vector<float, 64> a, Vector<float, 64> b) {
  const auto x = reinterpret_cast<__m512>(a), y = reinterpret_cast<__m512>(b);
  const auto number = _mm512_maskz_range_ps(kAll, x, y, kLargest ? kRangeMax : kRangeMin);
  const auto nan = reinterpret_cast<__m512>(_mm512_set1_epi32(-1));
  return reinterpret_cast<Vector<float, 64>>(_mm512_mask_mov_ps(number, _mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q), nan));
}
template <bool kLargest>
inline Vector<float, 32> extreme(Vector<float, 32> a, Vector<float, 32> b) {
  const auto x = reinterpret_cast<__m256>(a), y = reinterpret_cast<__m256>(b);
  const auto number = _mm256_maskz_range_ps(0xff, x, y, kLargest ? kRangeMax : kRangeMin);
  const auto nan = reinterpret_cast<__m256>(_mm256_set1_epi32(-1));
  return reinterpret_cast<Vector<float, 32>>(_mm256_mask_mov_ps(number, _mm256_cmp_ps_mask(x, y, _CMP_UNORD_Q), nan));
}
template <bool kLargest>
inline Vector<double, 32> extreme(Vector<double, 32> a, Vector<double, 32> b) {
  const auto x = reinterpret_cast<__m256d>(a), y = reinterpret_cast<__m256d>(b);
  const auto number = _mm256_maskz_range_pd(0xf, x, y, kLargest ? kRangeMax : kRangeMin);
  const auto nan = reinterpret_cast<__m256d>(_mm256_set1_epi32(-1));
  return reinterpret_cast<Vector<double, 32>>(_mm256_mask_mov_pd(number, _mm256_cmp_pd_mask(x, y, _CMP_UNORD_Q), nan));
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
