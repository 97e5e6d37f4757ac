// How a quantised all-reduce cuts a vector: the part that rank r sums, in elements of the user's buffers and in bytes
// of quantised ones, and slices of that part.
#pragma once

#include <algorithm>

#include "kernels/kernels.h"

namespace tutti {

class QuantisedCut {
 public:
  QuantisedCut(uint64_t elems, size_t block_elems, int n_ranks)
      : elems_(elems), block_elems_(block_elems), n_ranks_(n_ranks) {}
  size_t begin(int rank) const { return elem_of(first_block(rank)); }
  size_t begin(int rank, size_t slice, size_t n_slices) const {
    const size_t first = first_block(rank), blocks = first_block(rank + 1) - first;
    return elem_of(first + share(blocks, n_slices, slice));
  }
  size_t elems(int rank) const { return begin(rank + 1) - begin(rank); }
  size_t bytes(int rank) const { return quantised_bytes(elems(rank), block_elems_); }
  size_t all_bytes() const { return quantised_bytes(elems_, block_elems_); }

 private:
  size_t first_block(int rank) const {
    const size_t blocks = elems_ / block_elems_ + (elems_ % block_elems_ != 0 ? 1 : 0);
    return share(blocks, static_cast<size_t>(n_ranks_), static_cast<size_t>(rank));
  }
  static size_t share(size_t blocks, size_t n, size_t i) {
    return blocks / n * i + std::min(i, blocks % n);  // without a product that could overflow
  }
  size_t elem_of(size_t block) const { return std::min<size_t>(block * block_elems_, elems_); }
  const uint64_t elems_;
  const size_t block_elems_;
  const int n_ranks_;
};

}  // namespace tutti
