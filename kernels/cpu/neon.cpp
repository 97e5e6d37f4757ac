// NEON, which every 64-bit Arm has. The compiler offers no non-temporal stores, so these are plain ones.
#include <arm_neon.h>

#include "kernels/cpu/part.h"
#include "kernels/cpu/vector.h"

namespace tutti {
namespace {

inline constexpr size_t kVectorBytes = 16;
inline constexpr size_t kPlainBytes = kVectorBytes;
using Floats = Vector<float, kVectorBytes>;
using Words = Vector<uint32_t, kVectorBytes>;
using Halfs = Vector<uint16_t, kVectorBytes / 2>;
using Codes = Vector<uint8_t, kVectorBytes / 4>;

template <class Narrow>
inline Words widen(Narrow codes) {
  return __builtin_convertvector(codes, Words);
}

template <class Narrow>
inline void narrow(Words words, Narrow& out) {
  out = __builtin_convertvector(words, Narrow);
}

inline Floats decode_half(Halfs halfs) {
  return reinterpret_cast<Floats>(vcvt_f32_f16(reinterpret_cast<float16x4_t>(halfs)));
}

inline Halfs encode_half(Floats floats) {
  return reinterpret_cast<Halfs>(vcvt_f16_f32(reinterpret_cast<float32x4_t>(floats)));
}

template <class V>
inline void stream(char* to, V value) {
  __builtin_memcpy(to, &value, sizeof value);
}

inline void stream_fence() {}

}  // namespace
}  // namespace tutti

#include "kernels/cpu/simd.h"

void tutti::fill_neon(KernelTable& table) {
  table.isa = "neon";
  fill_all(table);
}
