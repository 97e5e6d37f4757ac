// Shared by instructions: values in cells, and the names under which instructions are found.
#pragma once

#include <cmath>
#include <type_traits>

#include "machine.h"

namespace tutti_test::ptx {

using Names = std::map<std::string, Instruction>;

template <class T>
using CellOf = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T>
T from_cell(CellOf<T> cell) {
  if constexpr (std::is_floating_point_v<T>) {
    T value;
    memcpy(&value, &cell, sizeof value);
    return value;
  } else {
    return static_cast<T>(cell);
  }
}

// A GPU's arithmetic produces only one NaN.
template <class T>
CellOf<T> to_cell(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    CellOf<T> cell;
    memcpy(&cell, &value, sizeof cell);
    return value == value ? cell : static_cast<CellOf<T>>(sizeof(T) == 8 ? 0x7fffffffffffffff : 0x7fffffff);
  } else {
    return static_cast<CellOf<T>>(static_cast<std::make_unsigned_t<T>>(value));
  }
}

inline void add_name(Names* names, const std::string& name, Handler run, uint8_t n_results = 1) {
  Instruction i;
  i.run = run;
  i.n_results = n_results;
  (*names)[name] = i;
}

// Each adds the names of its instructions.
void add_arithmetic(Names* names);
void add_comparisons(Names* names);
void add_conversions(Names* names);
bool decode_access(const std::string& spelling, Instruction* i);

}  // namespace tutti_test::ptx
