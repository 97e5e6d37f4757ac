// How the elements of each data type are stored (Stored) and computed with (Value), and the operators. Part of simd.h.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/vector.h"

namespace tutti {
namespace {

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<To>(from);
}

template <class V>
inline V load(const char* from) {
  V out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

template <class V>
inline void store(char* to, V value) {
  std::memcpy(to, &value, sizeof value);
}

inline Floats replace_nan(Floats value, uint32_t nan) {
  return value == value ? value : bits<Floats>(Words{} + nan);
}

// Integers, float and double. Integers are unsigned, where overflow wraps; Compared has the sign.
template <class E, size_t kBytes = kPlainBytes>
struct Plain {
  using Unsigned =
      typename std::conditional_t<std::is_integral_v<E>, std::make_unsigned<E>, std::type_identity<E>>::type;
  using Stored = Vector<Unsigned, kBytes>;
  using Value = Stored;
  using Compared = Vector<E, kBytes>;
  static constexpr size_t kElemBytes = sizeof(E);
  // Vectors in flight: enough to hide the latency of adding, few enough to stay in 16 registers.
  static constexpr int kUnroll = 4;

  static Value decode(Stored stored) { return stored; }
  static Stored encode(Value value) { return value; }
  static Value divide(Value value, uint32_t divisor) {
    if constexpr (std::is_floating_point_v<E>) return value / static_cast<E>(divisor);
    divide_lanes(value, divisor);
    return value;
  }

 private:
  // There is no vector instruction for it; inlined it would be most of the library.
  [[gnu::noinline]] static void divide_lanes(Value& value, uint32_t divisor) {
    using Common = std::conditional_t<std::is_signed_v<E>, int64_t, uint64_t>;
    for (size_t i = 0; i < kBytes / sizeof(E); ++i) {
      value[i] = static_cast<Unsigned>(static_cast<Common>(static_cast<E>(value[i])) / static_cast<Common>(divisor));
    }
  }
};

// Small floats compute in float; every NaN is stored as the type's one NaN.
struct HalfFloat : Plain<float, kVectorBytes> {
  using Stored = Halfs;
  static constexpr size_t kElemBytes = 2;
  static Value decode(Stored stored) { return decode_half(stored); }
  static Stored encode(Value value) { return encode_half(replace_nan(value, 0x7fffffff)); }
};

// For instruction sets that have no instruction for it; one that has overloads this.
template <class Stored>
inline bool round_brain(Floats, Floats, Stored&) {
  return false;
}

// A register of bfloat16 as two of floats, which needs no instruction that crosses lanes: the odd elements already are
// the upper halves of floats. Two sources of 32 KiB: 15.8 -> 23 GB/s of output.
struct BrainFloat {
  using Half = Plain<float, kVectorBytes>;
  using Stored = Vector<uint16_t, kVectorBytes>;
  struct Value {
    Floats even, odd;
  };
  static constexpr size_t kElemBytes = 2;
  static constexpr int kUnroll = 2;

  static Value decode(Stored stored) {
    const Words words = bits<Words>(stored);
    return {bits<Floats>(words << 16), bits<Floats>(words & kUpper)};
  }
  static Stored encode(Value value) {
    Stored stored;
    if (round_brain(value.even, value.odd, stored)) [[likely]]
      return stored;
    return bits<Stored>((round(value.even) >> 16) | (round(value.odd) & kUpper));
  }
  static Value divide(Value value, uint32_t divisor) {
    return {Half::divide(value.even, divisor), Half::divide(value.odd, divisor)};
  }

  // Rounds to the upper half of each word.
  static Words round(Floats value) {
    const Words word = bits<Words>(value);
    const Words rounded = word + 0x7fff + ((word >> 16) & 1);
    return value == value ? rounded : Words{} + 0x7fff0000;
  }

 private:
  static constexpr uint32_t kUpper = 0xffff0000;
};

// As many bfloat16 as a register has floats, in order.
struct OneBrain {
  using Stored = Halfs;
  static constexpr size_t kElemBytes = 2;
  static Floats decode(Stored stored) { return bits<Floats>(__builtin_convertvector(stored, Words) << 16); }
  static Stored encode(Floats value) { return __builtin_convertvector(BrainFloat::round(value) >> 16, Stored); }
};

// kEnd is the code above the largest finite one: infinity, or where there is none (0x7f) NaN.
template <int kExponentBits, int kMantissaBits, uint32_t kEnd>
struct EightBitFloat : Plain<float, kVectorBytes> {
  using Stored = Codes;
  static constexpr size_t kElemBytes = 1;
  static constexpr int kUnroll = 1;  // bound by its own many instructions
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr uint32_t kBias = (1u << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kSmallestNormal = (128 - kBias) << 23;  // this and the next one are the bits of floats
  static constexpr uint32_t kSmallestUnit = (128 - kBias - kMantissaBits) << 23;

  static Value decode(Stored stored) {
    const Words code = widen(stored);
    const Words magnitude = code & 0x7f;
    const Words normal = (magnitude << kShift) + ((127 - kBias) << 23);
    const Value denormal = __builtin_convertvector(bits<Ints>(magnitude), Value) * bits<Value>(Words{} + kSmallestUnit);
    Words word = magnitude < (1u << kMantissaBits) ? bits<Words>(denormal) : normal;
    word = magnitude < kEnd ? word : (magnitude << kShift) | 0x7f800000;
    return bits<Value>(word | (code & 0x80) << 24);
  }

  static Stored encode(Value value) {
    const Words word = bits<Words>(value);
    const Words magnitude = word & 0x7fffffff;
    const Words odd = (magnitude >> kShift) & 1;
    const Words normal = ((magnitude + ((1u << (kShift - 1)) - 1) + odd) >> kShift) - ((127 - kBias) << kMantissaBits);
    // Adding a number whose last place is worth one denormal unit makes the hardware round to such units.
    const Words magic = Words{} + kSmallestUnit + (23u << 23);
    const Words denormal = bits<Words>(bits<Value>(magnitude) + bits<Value>(magic)) - magic;
    Words code = magnitude < kSmallestNormal ? denormal : normal;
    code = code < kEnd ? code : Words{} + (kEnd - 1);
    code = kEnd == 0x7c && magnitude == 0x7f800000 ? Words{} + kEnd : code;
    code |= (word >> 24) & 0x80;
    Stored out;
    narrow(magnitude > 0x7f800000 ? Words{} + 0x7f : code, out);
    return out;
  }

 private:
  using Ints = Vector<int32_t, kVectorBytes>;
};

struct Sum {
  template <class T>
  static typename T::Value combine(typename T::Value a, typename T::Value b) {
    return a + b;
  }
};

struct Prod {
  template <class T>
  static typename T::Value combine(typename T::Value a, typename T::Value b) {
    return a * b;
  }
};

// extreme() of kernels/element.h; instruction sets that can do it faster overload this. In the other order of operands
// the result differs if they are two zeros, or if one is NaN, which then is not equal.
template <bool kLargest, class V>
inline V extreme(V a, V b) {
  using Bits = Vector<std::conditional_t<sizeof(a[0]) == 8, uint64_t, uint32_t>, sizeof a>;
  const V one = (kLargest ? a > b : a < b) ? a : b;
  const V other = (kLargest ? b > a : b < a) ? b : a;
  const Bits p = bits<Bits>(one), q = bits<Bits>(other);
  return bits<V>((kLargest ? p & q : p | q) | bits<Bits>(one != other));
}

template <bool kLargest>
struct Extreme {
  template <class T>
  static typename T::Value combine(typename T::Value a, typename T::Value b) {
    using Compared = typename T::Compared;
    const auto x = bits<Compared>(a), y = bits<Compared>(b);
    if constexpr (std::is_floating_point_v<std::remove_reference_t<decltype(x[0])>>) return extreme<kLargest>(x, y);
    return (kLargest ? x > y : x < y) ? a : b;
  }
};
using Min = Extreme<false>;
using Max = Extreme<true>;

}  // namespace
}  // namespace tutti
