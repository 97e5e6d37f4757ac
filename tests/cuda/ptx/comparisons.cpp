// Comparisons, and selections by them.
#include "cells.h"

namespace tutti_test::ptx {
namespace {

template <class T, class Holds>
void compare(Warp& w, const Instruction& i) {
  auto* const d = w.row<uint32_t>(i.operands[0]);
  const auto* const a = w.row<CellOf<T>>(i.operands[1]);
  const auto* const b = w.row<CellOf<T>>(i.operands[2]);
  w.each_lane([&](uint32_t l) { d[l] = Holds()(from_cell<T>(a[l]), from_cell<T>(b[l])); });
}

template <class Cell>
void choose(Warp& w, const Instruction& i) {
  auto* const d = w.row<Cell>(i.operands[0]);
  const auto *const a = w.row<Cell>(i.operands[1]), *const b = w.row<Cell>(i.operands[2]);
  const auto* const chooses = w.row<uint32_t>(i.operands[3]);
  w.each_lane([&](uint32_t l) { d[l] = chooses[l] != 0 ? a[l] : b[l]; });
}

struct Equal {
  template <class T>
  bool operator()(T a, T b) const {
    return a == b;
  }
};
struct Unequal {  // false for NaN
  template <class T>
  bool operator()(T a, T b) const {
    return a < b || a > b;
  }
};
struct Less {
  template <class T>
  bool operator()(T a, T b) const {
    return a < b;
  }
};
struct LessOrEqual {
  template <class T>
  bool operator()(T a, T b) const {
    return a <= b;
  }
};
struct Greater {
  template <class T>
  bool operator()(T a, T b) const {
    return a > b;
  }
};
struct GreaterOrEqual {
  template <class T>
  bool operator()(T a, T b) const {
    return a >= b;
  }
};
struct AnyNan {
  template <class T>
  bool operator()(T a, T b) const {
    return a != a || b != b;
  }
};
struct NoNan {
  template <class T>
  bool operator()(T a, T b) const {
    return !AnyNan()(a, b);
  }
};
template <class Holds>
struct OrNan {
  template <class T>
  bool operator()(T a, T b) const {
    return AnyNan()(a, b) || Holds()(a, b);
  }
};

template <class T>
void add_type(Names* names, const std::string& type) {
  add_name(names, "setp.eq." + type, compare<T, Equal>);
  add_name(names, "setp.ne." + type, compare<T, Unequal>);
  add_name(names, "setp.lt." + type, compare<T, Less>);
  add_name(names, "setp.le." + type, compare<T, LessOrEqual>);
  add_name(names, "setp.gt." + type, compare<T, Greater>);
  add_name(names, "setp.ge." + type, compare<T, GreaterOrEqual>);
  if (std::is_integral_v<T>) return;
  add_name(names, "setp.nan." + type, compare<T, AnyNan>);
  add_name(names, "setp.num." + type, compare<T, NoNan>);
  add_name(names, "setp.equ." + type, compare<T, OrNan<Equal>>);
  add_name(names, "setp.neu." + type, compare<T, OrNan<Unequal>>);
  add_name(names, "setp.ltu." + type, compare<T, OrNan<Less>>);
  add_name(names, "setp.leu." + type, compare<T, OrNan<LessOrEqual>>);
  add_name(names, "setp.gtu." + type, compare<T, OrNan<Greater>>);
  add_name(names, "setp.geu." + type, compare<T, OrNan<GreaterOrEqual>>);
}

}  // namespace

void add_comparisons(Names* names) {
  add_type<int16_t>(names, "s16");
  add_type<uint16_t>(names, "u16");
  add_type<uint16_t>(names, "b16");
  add_type<int32_t>(names, "s32");
  add_type<uint32_t>(names, "u32");
  add_type<uint32_t>(names, "b32");
  add_type<int64_t>(names, "s64");
  add_type<uint64_t>(names, "u64");
  add_type<uint64_t>(names, "b64");
  add_type<float>(names, "f32");
  add_type<double>(names, "f64");
  for (const char* type : {"b16", "u16", "s16", "b32", "u32", "s32", "f32"})
    add_name(names, std::string("selp.") + type, choose<uint32_t>);
  for (const char* type : {"b64", "u64", "s64", "f64"}) add_name(names, std::string("selp.") + type, choose<uint64_t>);
}

}  // namespace tutti_test::ptx
