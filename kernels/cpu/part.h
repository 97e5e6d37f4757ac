// load_part and store_part for instruction sets without masks. See simd.h.
#pragma once

#include <cstddef>
#include <cstring>

namespace tutti {
namespace {

// Copies bytes < 2 * kPiece in powers of two: constant sizes become moves, not calls.
template <size_t kPiece>
inline void copy_pieces(char* to, const char* from, size_t bytes) {
  if constexpr (kPiece > 0) {
    const size_t piece = bytes & kPiece;
    if (piece) std::memcpy(to, from, kPiece);
    copy_pieces<kPiece / 2>(to + piece, from + piece, bytes);
  }
}

// Not inlined: they are much code and seldom run.
template <class V>
[[gnu::noinline]] V load_part(const char* from, size_t bytes) {
  V out{};
  copy_pieces<sizeof out / 2>(reinterpret_cast<char*>(&out), from, bytes);
  return out;
}

template <class V>
[[gnu::noinline]] void store_part(char* to, V value, size_t bytes) {
  copy_pieces<sizeof value / 2>(to, reinterpret_cast<const char*>(&value), bytes);
}

}  // namespace
}  // namespace tutti
