// load_part and store_part for instruction sets without masks. See simd.h.
#pragma once

#include <cstddef>
#include <cstring>

namespace tutti {
namespace {

template <class V>
inline V load_part(const char* from, size_t bytes) {
  V out{};
  std::memcpy(&out, from, bytes);
  return out;
}

template <class V>
inline void store_part(char* to, V value, size_t bytes) {
  std::memcpy(to, &value, bytes);
}

}  // namespace
}  // namespace tutti
