// What the operators do to single elements, for every data type: the definition that all kernels share or must match.
// The GPU has instructions for the small floats, which round and make NaNs as kernels/cpu/convert.h does.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "kernels/cpu/convert.h"
#include "kernels/target.h"
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace tutti {

// Integers, and the floats that C++ has. Integers are computed unsigned, where overflow wraps.
template <class E>
struct Plain {
  using Stored = E;
  using Value = E;
  // 32 bits are enough for the low bits of narrower types, and a GPU has no wider registers.
  using Wide = std::conditional_t<std::is_integral_v<E>, std::conditional_t<(sizeof(E) > 4), uint64_t, uint32_t>, E>;

  __host__ __device__ static Value load(Stored stored) { return stored; }
  __host__ __device__ static Stored store(Value value) { return value; }
  __host__ __device__ static Value add(Value a, Value b) {
    return static_cast<E>(static_cast<Wide>(a) + static_cast<Wide>(b));
  }
  __host__ __device__ static Value mul(Value a, Value b) {
    return static_cast<E>(static_cast<Wide>(a) * static_cast<Wide>(b));
  }
  // 64-bit division is slow on a GPU, so narrower integers are divided unsigned, in 32 bits.
  __host__ __device__ static Value divide(Value a, uint32_t divisor) {
    if constexpr (std::is_floating_point_v<E> || sizeof(E) == 8) {
      return a / static_cast<E>(divisor);
    } else {
      const bool is_negative = static_cast<int64_t>(a) < 0;
      const auto bits = static_cast<uint32_t>(a);
      const uint32_t quotient = (is_negative ? 0 - bits : bits) / divisor;
      return static_cast<E>(is_negative ? 0 - quotient : quotient);
    }
  }
};

template <class Format, class Code>
struct Small : Plain<float> {
  using Stored = Code;
  __host__ __device__ static float load(Code code) {
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<Format, Bfloat16>) return __uint_as_float(static_cast<uint32_t>(code) << 16);
    if constexpr (std::is_same_v<Format, Half>) return __half2float(__ushort_as_half(code));
    if constexpr (sizeof(Code) == 1) {
      constexpr auto kKind = std::is_same_v<Format, Float8e4m3> ? __NV_E4M3 : __NV_E5M2;
      return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, kKind)));
    }
#else
    return Format::to_float(code);
#endif
  }
  __host__ __device__ static Code store(float value) {
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<Format, Bfloat16>) return __bfloat16_as_ushort(__float2bfloat16_rn(value));
    if constexpr (std::is_same_v<Format, Half>) return __half_as_ushort(__float2half_rn(value));
    if constexpr (std::is_same_v<Format, Float8e4m3>)
      return one_nan(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
    if constexpr (std::is_same_v<Format, Float8e5m2>) {
      // Saturation would also affect infinity, which has to stay.
      if (__isinff(value)) return static_cast<Code>(value < 0 ? 0xfc : 0x7c);
      return one_nan(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2));
    }
#else
    return static_cast<Code>(Format::from_float(value));
#endif
  }

 private:
#if defined(__CUDA_ARCH__)
  __device__ static Code one_nan(Code code) {
    constexpr uint32_t kFirstNan = Format::kEnd + (Format::kEnd != Format::kNan ? 1 : 0);
    return (code & Format::kNan) >= kFirstNan ? static_cast<Code>(Format::kNan) : code;
  }
#endif
};

// In the order of DataType.
template <int kType>
struct ElementOf;
template <>
struct ElementOf<0> : Plain<int8_t> {};
template <>
struct ElementOf<1> : Plain<uint8_t> {};
template <>
struct ElementOf<2> : Plain<int32_t> {};
template <>
struct ElementOf<3> : Plain<uint32_t> {};
template <>
struct ElementOf<4> : Plain<int64_t> {};
template <>
struct ElementOf<5> : Plain<uint64_t> {};
template <>
struct ElementOf<6> : Small<Half, uint16_t> {};
template <>
struct ElementOf<7> : Plain<float> {};
template <>
struct ElementOf<8> : Plain<double> {};
template <>
struct ElementOf<9> : Small<Bfloat16, uint16_t> {};
template <>
struct ElementOf<10> : Small<Float8e4m3, uint8_t> {};
template <>
struct ElementOf<11> : Small<Float8e5m2, uint8_t> {};

template <class Value>
__host__ __device__ bool is_nan(Value value) {
  if constexpr (std::is_floating_point_v<Value>) return value != value;
  return false;
}

// The larger or smaller of two. Commutative and associative bit by bit, so that no algorithm changes the result: -0 is
// less than +0, and if any operand is NaN the result is the NaN with all bits set. With branches on the operands, a
// GPU's registers would not suffice.
template <class Value>
__host__ __device__ Value extreme(bool largest, Value a, Value b) {
  const Value number = (a < b) == largest ? b : a;
  if constexpr (std::is_floating_point_v<Value>) {
    using Bits = std::conditional_t<(sizeof(Value) > 4), uint64_t, uint32_t>;
    constexpr Bits kSign = ~(~Bits{0} >> 1);
    const auto x = std::bit_cast<Bits>(a), y = std::bit_cast<Bits>(b), z = std::bit_cast<Bits>(number);
    // The sign is that of both operands, or of either.
    const Bits right = largest ? z & ((x & y) | ~kSign) : z | ((x | y) & kSign);
    return std::bit_cast<Value>(is_nan(a) || is_nan(b) ? ~Bits{0} : right);
  }
  return number;
}

template <class T>
__host__ __device__ typename T::Value combine(RedOp op, typename T::Value a, typename T::Value b) {
  switch (op) {
    case RedOp::kProd: return T::mul(a, b);
    case RedOp::kMin: return extreme(false, a, b);
    case RedOp::kMax: return extreme(true, a, b);
    default: return T::add(a, b);
  }
}

}  // namespace tutti
