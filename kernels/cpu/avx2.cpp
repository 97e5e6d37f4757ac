// AVX2 and F16C.
#include <immintrin.h>

#include "kernels/cpu/vector.h"

namespace tutti {
namespace {

inline constexpr size_t kVectorBytes = 32;
inline constexpr size_t kPlainBytes = kVectorBytes;
using Floats = Vector<float, kVectorBytes>;
using Words = Vector<uint32_t, kVectorBytes>;
using Halfs = Vector<uint16_t, kVectorBytes / 2>;
using Codes = Vector<uint8_t, kVectorBytes / 4>;

inline Words widen(Codes codes) {
  return reinterpret_cast<Words>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(reinterpret_cast<long long>(codes))));
}

inline void narrow(Words words, Halfs& out) {
  const __m256i wide = reinterpret_cast<__m256i>(words);
  out = reinterpret_cast<Halfs>(_mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)));
}

inline void narrow(Words words, Codes& out) {
  Halfs halfs;
  narrow(words, halfs);
  const __m128i half = reinterpret_cast<__m128i>(halfs);
  out = reinterpret_cast<Codes>(_mm_cvtsi128_si64(_mm_packus_epi16(half, half)));
}

inline Floats decode_half(Halfs halfs) {
  return reinterpret_cast<Floats>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(halfs)));
}

inline Halfs encode_half(Floats floats) {
  return reinterpret_cast<Halfs>(_mm256_cvtps_ph(reinterpret_cast<__m256>(floats), _MM_FROUND_TO_NEAREST_INT));
}

template <class V>
inline void stream(char* to, V value) {
  if constexpr (sizeof value == 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(value));
  if constexpr (sizeof value == 16) _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(value));
  if constexpr (sizeof value == 8)
    _mm_stream_si64(reinterpret_cast<long long*>(to), reinterpret_cast<long long>(value));
}

inline void stream_fence() {
  _mm_sfence();
}

}  // namespace
}  // namespace tutti

#include "kernels/cpu/part.h"
#include "kernels/cpu/simd.h"

void tutti::fill_avx2(KernelTable& table) {
  table.isa = "avx2";
  fill_all(table);
}
