// Minimum and maximum of floats as they have to be, bit by bit, found by comparing codes as integers.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace tutti_test {

struct FloatKind {
  int type;  // a DataType and a tuttiDataType_t
  size_t bytes;
  uint64_t last_number, nan;  // the largest positive code that is no NaN; the NaN that a minimum or maximum is

  uint64_t sign() const { return uint64_t{1} << (8 * bytes - 1); }
  uint64_t code_at(const std::vector<char>& data, size_t i) const {
    uint64_t code = 0;
    std::memcpy(&code, data.data() + i * bytes, bytes);
    return code;
  }
};
inline constexpr FloatKind kFloatKinds[] = {{6, 2, 0x7c00, 0x7fff},
                                            {7, 4, 0x7f800000, 0xffffffff},
                                            {8, 8, 0x7ff0000000000000, 0xffffffffffffffff},
                                            {9, 2, 0x7f80, 0x7fff},
                                            {10, 1, 0x7e, 0x7f},
                                            {11, 1, 0x7c, 0x7f}};

// Zeros, denormals, numbers, infinities and NaNs, of both signs.
inline std::vector<uint64_t> special_codes(const FloatKind& kind) {
  const uint64_t top = kind.sign() - 1, last = kind.last_number;
  std::vector<uint64_t> codes;
  for (const uint64_t code : {uint64_t{0}, uint64_t{1}, uint64_t{2}, last / 2, last / 2 + 1, last - 1, last, last + 1,
                              last + (top - last + 1) / 2, top}) {
    codes.push_back(code);
    codes.push_back(code | kind.sign());
  }
  return codes;
}

inline uint64_t extreme_of(const FloatKind& kind, bool largest, const std::vector<uint64_t>& codes) {
  const auto place = [&](uint64_t code) {  // -0 comes right before 0
    const auto magnitude = static_cast<int64_t>(code & ~kind.sign());
    return code & kind.sign() ? -1 - magnitude : magnitude;
  };
  uint64_t found = codes[0];
  for (const uint64_t code : codes) {
    if ((code & ~kind.sign()) > kind.last_number) return kind.nan;
    if (largest ? place(code) > place(found) : place(code) < place(found)) found = code;
  }
  return found;
}

// One operand of all combinations of special codes, again and again: each of `which` varies at its own speed.
inline std::vector<char> special_operand(const FloatKind& kind, size_t which, size_t count) {
  const std::vector<uint64_t> codes = special_codes(kind);
  std::vector<char> data(count * kind.bytes);
  size_t period = 1;
  for (size_t w = 0; w < which; w++) period *= codes.size();
  for (size_t i = 0; i < count; i++)
    std::memcpy(data.data() + i * kind.bytes, &codes[i / period % codes.size()], kind.bytes);
  return data;
}

// How many results are not the minimum or maximum of the operands.
inline size_t wrong_extremes(const FloatKind& kind, bool largest, const std::vector<std::vector<char>>& operands,
                             const std::vector<char>& results) {
  size_t wrong = 0;
  for (size_t i = 0; i < results.size() / kind.bytes; i++) {
    std::vector<uint64_t> codes;
    for (const auto& operand : operands) codes.push_back(kind.code_at(operand, i));
    wrong += kind.code_at(results, i) != extreme_of(kind, largest, codes);
  }
  return wrong;
}

}  // namespace tutti_test
