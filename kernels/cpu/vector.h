// Vectors of the compiler (GCC's and clang's vector extension): + * < ?: work element by element on any target.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

template <class E, size_t kBytes>
struct VectorOf {
  typedef E Type __attribute__((vector_size(kBytes)));
};
template <class E, size_t kBytes>
using Vector = typename VectorOf<E, kBytes>::Type;

}  // namespace tutti
