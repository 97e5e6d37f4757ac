// Arithmetic on integers, bits and floats.
#include <bit>

#include "cells.h"

namespace tutti_test::ptx {
namespace {

template <class T, class Does>
void unary(Warp& w, const Instruction& i) {
  auto* const d = w.row<CellOf<T>>(i.operands[0]);
  const auto* const a = w.row<CellOf<T>>(i.operands[1]);
  w.each_lane([&](uint32_t l) { d[l] = to_cell<T>(Does()(from_cell<T>(a[l]))); });
}

template <class T, class Does>
void binary(Warp& w, const Instruction& i) {
  auto* const d = w.row<CellOf<T>>(i.operands[0]);
  const auto* const a = w.row<CellOf<T>>(i.operands[1]);
  const auto* const b = w.row<CellOf<T>>(i.operands[2]);
  w.each_lane([&](uint32_t l) { d[l] = to_cell<T>(static_cast<T>(Does()(from_cell<T>(a[l]), from_cell<T>(b[l])))); });
}

template <class T, class Does>
void shift(Warp& w, const Instruction& i) {
  auto* const d = w.row<CellOf<T>>(i.operands[0]);
  const auto* const a = w.row<CellOf<T>>(i.operands[1]);
  const auto* const b = w.row<uint32_t>(i.operands[2]);
  w.each_lane([&](uint32_t l) { d[l] = to_cell<T>(Does()(from_cell<T>(a[l]), b[l])); });
}

template <class T, class Wide>
void multiply_wide(Warp& w, const Instruction& i) {
  auto* const d = w.row<CellOf<Wide>>(i.operands[0]);
  const auto* const a = w.row<CellOf<T>>(i.operands[1]);
  const auto* const b = w.row<CellOf<T>>(i.operands[2]);
  w.each_lane([&](uint32_t l) {
    d[l] = to_cell<Wide>(static_cast<Wide>(from_cell<T>(a[l])) * static_cast<Wide>(from_cell<T>(b[l])));
  });
}

// Overflow must wrap, so integers are computed unsigned, and no narrower than `unsigned`.
template <class T>
using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return a + b;
    else
      return static_cast<T>(static_cast<Bits<T>>(a) + static_cast<Bits<T>>(b));
  }
};
struct Subtract {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return a - b;
    else
      return static_cast<T>(static_cast<Bits<T>>(a) - static_cast<Bits<T>>(b));
  }
};
struct Multiply {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return a * b;
    else
      return static_cast<T>(static_cast<Bits<T>>(a) * static_cast<Bits<T>>(b));
  }
};
struct Divide {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return a / b;
    else if (b == 0)
      return static_cast<T>(~T{0});
    else if (std::is_signed_v<T> && b == static_cast<T>(-1))
      return static_cast<T>(0 - static_cast<Bits<T>>(a));
    else
      return static_cast<T>(a / b);
  }
};
struct Remainder {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Least {
  template <class T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct Most {
  template <class T>
  T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};
struct And {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
struct ShiftLeft {
  template <class T>
  T operator()(T a, uint32_t by) const {
    return by >= sizeof(T) * 8 ? T{0} : static_cast<T>(static_cast<Bits<T>>(a) << by);
  }
};
struct ShiftRight {
  template <class T>
  T operator()(T a, uint32_t by) const {
    if (by >= sizeof(T) * 8) return static_cast<T>(a < 0 ? -1 : 0);
    return static_cast<T>(a >> by);
  }
};
struct Negate {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(0 - static_cast<Bits<T>>(a));
  }
};
struct Absolute {
  int32_t operator()(int32_t a) const { return a < 0 ? Negate()(a) : a; }
};
struct Not {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};
struct Opposite {
  uint32_t operator()(uint32_t a) const { return a == 0; }
};
struct Is {
  uint32_t operator()(uint32_t a) const { return a != 0; }
};
struct Same {
  template <class T>
  T operator()(T a) const {
    return a;
  }
};
struct Magnitude {
  float operator()(float a) const { return std::fabs(a); }
};
struct Root {
  float operator()(float a) const { return std::sqrt(a); }
};
struct Reciprocal {
  template <class T>
  T operator()(T a) const {
    return 1 / a;
  }
};

__extension__ using Wide = unsigned __int128;

// The upper half of a product.
template <class T, class Product>
void multiply_high(Warp& w, const Instruction& i) {
  auto* const d = w.row<CellOf<T>>(i.operands[0]);
  const auto *const a = w.row<CellOf<T>>(i.operands[1]), *const b = w.row<CellOf<T>>(i.operands[2]);
  w.each_lane([&](uint32_t l) { d[l] = static_cast<T>(static_cast<Product>(a[l]) * b[l] >> 8 * sizeof(T)); });
}

// With a single rounding.
template <class T>
void multiply_add_float(Warp& w, const Instruction& i) {
  auto* const d = w.row<CellOf<T>>(i.operands[0]);
  const auto *const a = w.row<CellOf<T>>(i.operands[1]), *const b = w.row<CellOf<T>>(i.operands[2]),
                    *const c = w.row<CellOf<T>>(i.operands[3]);
  w.each_lane(
      [&](uint32_t l) { d[l] = to_cell<T>(std::fma(from_cell<T>(a[l]), from_cell<T>(b[l]), from_cell<T>(c[l]))); });
}

template <class T>
void leading_zeros(Warp& w, const Instruction& i) {
  auto* const d = w.row<uint32_t>(i.operands[0]);
  const auto* const a = w.row<CellOf<T>>(i.operands[1]);
  w.each_lane([&](uint32_t l) { d[l] = static_cast<uint32_t>(std::countl_zero(static_cast<T>(a[l]))); });
}

// The upper word of two words that are shifted left together.
void funnel_left(Warp& w, const Instruction& i) {
  auto* const d = w.row<uint32_t>(i.operands[0]);
  const auto *const low = w.row<uint32_t>(i.operands[1]), *const high = w.row<uint32_t>(i.operands[2]),
                    *const by = w.row<uint32_t>(i.operands[3]);
  w.each_lane([&](uint32_t l) {
    const uint64_t both = static_cast<uint64_t>(high[l]) << 32 | low[l];
    d[l] = static_cast<uint32_t>(both << (by[l] & 31) >> 32);
  });
}

void multiply_add(Warp& w, const Instruction& i) {
  auto* const d = w.row<uint32_t>(i.operands[0]);
  const auto *const a = w.row<uint32_t>(i.operands[1]), *const b = w.row<uint32_t>(i.operands[2]),
                    *const c = w.row<uint32_t>(i.operands[3]);
  w.each_lane([&](uint32_t l) { d[l] = a[l] * b[l] + c[l]; });
}

// Inserts bits of the first operand into the second one, at a position.
template <class T>
void insert_bits(Warp& w, const Instruction& i) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  auto* const d = w.row<T>(i.operands[0]);
  const auto *const a = w.row<T>(i.operands[1]), *const b = w.row<T>(i.operands[2]);
  const auto *const at = w.row<uint32_t>(i.operands[3]), *const count = w.row<uint32_t>(i.operands[4]);
  w.each_lane([&](uint32_t l) {
    const uint32_t first = at[l] & 255, n = count[l] & 255;
    const T ones = n >= kBits ? ~T{0} : (T{1} << n) - 1, mask = first >= kBits ? 0 : ones << first;
    d[l] = (b[l] & ~mask) | (first >= kBits ? 0 : a[l] << first & mask);
  });
}

// Selects four of the eight bytes of both operands by number; with 8 added, the byte's sign is replicated.
void permute(Warp& w, const Instruction& i) {
  auto* const d = w.row<uint32_t>(i.operands[0]);
  const auto *const a = w.row<uint32_t>(i.operands[1]), *const b = w.row<uint32_t>(i.operands[2]),
                    *const choice = w.row<uint32_t>(i.operands[3]);
  w.each_lane([&](uint32_t l) {
    const uint64_t both = static_cast<uint64_t>(b[l]) << 32 | a[l];
    uint32_t result = 0;
    for (uint32_t byte = 0; byte < 4; byte++) {
      const uint32_t which = choice[l] >> 4 * byte & 15;
      auto value = static_cast<uint32_t>(both >> 8 * (which & 7) & 255);
      if ((which & 8) != 0) value = value >= 128 ? 255 : 0;
      result |= value << 8 * byte;
    }
    d[l] = result;
  });
}

template <class Whole, class Half>
void pack(Warp& w, const Instruction& i) {
  auto* const d = w.row<Whole>(i.operands[0]);
  const auto *const a = w.row<uint32_t>(i.operands[1]), *const b = w.row<uint32_t>(i.operands[2]);
  w.each_lane([&](uint32_t l) {
    d[l] =
        static_cast<Whole>(static_cast<Half>(a[l]) | static_cast<Whole>(static_cast<Half>(b[l])) << 8 * sizeof(Half));
  });
}

template <class Whole, class Half>
void unpack(Warp& w, const Instruction& i) {
  auto *const d = w.row<uint32_t>(i.operands[0]), *const e = w.row<uint32_t>(i.operands[1]);
  const auto* const a = w.row<Whole>(i.operands[2]);
  w.each_lane([&](uint32_t l) {
    const Whole whole = a[l];
    d[l] = static_cast<Half>(whole);
    e[l] = static_cast<Half>(whole >> 8 * sizeof(Half));
  });
}

template <class T>
void add_integer(Names* names, const std::string& type) {
  add_name(names, "add." + type, binary<T, Add>);
  add_name(names, "sub." + type, binary<T, Subtract>);
  add_name(names, "mul.lo." + type, binary<T, Multiply>);
  add_name(names, "div." + type, binary<T, Divide>);
  add_name(names, "rem." + type, binary<T, Remainder>);
  add_name(names, "min." + type, binary<T, Least>);
  add_name(names, "max." + type, binary<T, Most>);
  add_name(names, "neg." + type, unary<T, Negate>);
  add_name(names, "shr." + type, shift<T, ShiftRight>);
  add_name(names, "mov." + type, unary<T, Same>);
}

template <class T>
void add_float(Names* names, const std::string& type) {
  for (const char* rounded : {".rn.", "."}) {
    add_name(names, "add" + (rounded + type), binary<T, Add>);
    add_name(names, "sub" + (rounded + type), binary<T, Subtract>);
    add_name(names, "mul" + (rounded + type), binary<T, Multiply>);
  }
  add_name(names, "fma.rn." + type, multiply_add_float<T>);
  add_name(names, "rcp.rn." + type, unary<T, Reciprocal>);
  add_name(names, "div.rn." + type, binary<T, Divide>);
  add_name(names, "mov." + type, unary<CellOf<T>, Same>);  // keeps all bits of a NaN
}

template <class T>
void add_bits(Names* names, const std::string& type) {
  add_name(names, "and." + type, binary<T, And>);
  add_name(names, "or." + type, binary<T, Or>);
  add_name(names, "xor." + type, binary<T, Xor>);
  add_name(names, "not." + type, unary<T, Not>);
  add_name(names, "shl." + type, shift<T, ShiftLeft>);
  add_name(names, "shr." + type, shift<T, ShiftRight>);
  add_name(names, "mov." + type, unary<T, Same>);
}

}  // namespace

void add_arithmetic(Names* names) {
  add_integer<int16_t>(names, "s16");
  add_integer<uint16_t>(names, "u16");
  add_integer<int32_t>(names, "s32");
  add_integer<uint32_t>(names, "u32");
  add_integer<int64_t>(names, "s64");
  add_integer<uint64_t>(names, "u64");
  add_float<float>(names, "f32");
  add_float<double>(names, "f64");
  add_bits<uint16_t>(names, "b16");
  add_bits<uint32_t>(names, "b32");
  add_bits<uint64_t>(names, "b64");
  add_bits<uint32_t>(names, "pred");
  add_name(names, "not.pred", unary<uint32_t, Opposite>);
  add_name(names, "mov.pred", unary<uint32_t, Is>);
  add_name(names, "cvta.to.global.u64", unary<uint64_t, Same>);
  add_name(names, "cvta.global.u64", unary<uint64_t, Same>);
  add_name(names, "cvta.param.u64", unary<uint64_t, Same>);
  add_name(names, "abs.s32", unary<int32_t, Absolute>);
  add_name(names, "abs.f32", unary<float, Magnitude>);
  add_name(names, "sqrt.rn.f32", unary<float, Root>);
  add_name(names, "mul.wide.s32", multiply_wide<int32_t, int64_t>);
  add_name(names, "mul.wide.u32", multiply_wide<uint32_t, uint64_t>);
  add_name(names, "mul.wide.u16", multiply_wide<uint16_t, uint32_t>);
  add_name(names, "mad.lo.s32", multiply_add);
  add_name(names, "mul.hi.u32", multiply_high<uint32_t, uint64_t>);
  add_name(names, "mul.hi.u64", multiply_high<uint64_t, Wide>);
  add_name(names, "clz.b32", leading_zeros<uint32_t>);
  add_name(names, "clz.b64", leading_zeros<uint64_t>);
  add_name(names, "shf.l.wrap.b32", funnel_left);
  add_name(names, "bfi.b32", insert_bits<uint32_t>);
  add_name(names, "bfi.b64", insert_bits<uint64_t>);
  add_name(names, "prmt.b32", permute);
  add_name(names, "mov.b32.pack", pack<uint32_t, uint16_t>);
  add_name(names, "mov.b64.pack", pack<uint64_t, uint32_t>);
  add_name(names, "mov.b32.unpack", unpack<uint32_t, uint16_t>, 2);
  add_name(names, "mov.b64.unpack", unpack<uint64_t, uint32_t>, 2);
}

}  // namespace tutti_test::ptx
