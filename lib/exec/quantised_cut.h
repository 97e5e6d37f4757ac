// How a quantised all-reduce cuts a vector: what rank r sums, as it is in the user's buffers and in quantised ones.
#pragma once

#include <algorithm>

#include "kernels/kernels.h"

namespace tutti {

class QuantisedCut {
 public:
  QuantisedCut(uint64_t elems, size_t block_elems, int n_ranks)
      : elems_(elems), block_elems_(block_elems), n_ranks_(n_ranks) {}
  size_t begin(int rank) const { return std::min<size_t>(first_block(rank) * block_elems_, elems_); }
  size_t elems(int rank) const { return begin(rank + 1) - begin(rank); }
  size_t bytes_begin(int rank) const { return quantised_bytes(begin(rank), block_elems_); }
  size_t bytes(int rank) const { return quantised_bytes(elems(rank), block_elems_); }
  size_t all_bytes() const { return quantised_bytes(elems_, block_elems_); }

 private:
  size_t first_block(int rank) const {
    const auto n = static_cast<size_t>(n_ranks_), r = static_cast<size_t>(rank);
    const size_t blocks = elems_ / block_elems_ + (elems_ % block_elems_ != 0 ? 1 : 0);
    return blocks / n * r + std::min(r, blocks % n);  // without a product that could overflow
  }
  const uint64_t elems_;
  const size_t block_elems_;
  const int n_ranks_;
};

}  // namespace tutti
