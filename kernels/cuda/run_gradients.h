// The bodies of the kernels for gradients, one block's part, on GPU and CPU. Work is cut into tiles, which are shared
// out among the blocks whatever item they belong to.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/cuda/block.h"
#include "kernels/cuda/gradients.h"
#include "kernels/cuda/run_jobs.h"
#include "kernels/quantised.h"

namespace tutti::cuda {

using Team = Block<kGradientThreads>;

inline constexpr uint32_t kSpanUnroll = 8;
inline constexpr uint64_t kSpanTileElems = uint64_t{kSpanUnroll} * kGradientThreads;
inline constexpr uint64_t kDigestWordBytes = 4;

// Calls does(item, tile) for this block's tiles.
template <class Call, class TilesOf, class Does>
__host__ __device__ void for_each_tile(const Call& call, const Team& team, TilesOf&& tiles_of_item, Does&& does) {
  uint64_t next = team.number();  // counted from the beginning of the current item
  for (int i = 0; i < call.n_items; i++) {
    const uint64_t tiles = tiles_of_item(call.items[i]);
    for (; next < tiles; next += team.n_blocks()) does(call.items[i], next);
    next -= tiles;
  }
}

__host__ __device__ inline uint64_t span_tiles(const SpanCall& call, const SpanItem& item) {
  uint64_t tile = kSpanTileElems;
  if (call.step == SpanStep::kDigest) tile *= kDigestWordBytes;
  if (call.block_elems != 0) tile = uint64_t{Team::kWarps} * call.block_elems;
  return (item.elems + tile - 1) / tile;
}

// ---- spans ---------------------------------------------------------------------------------------------------------

template <class From, class To>
struct Convert {
  static __host__ __device__ void tile(const Team& team, const SpanCall&, const SpanItem& item, uint64_t tile) {
    const auto* from = static_cast<const typename From::Stored*>(item.from);
    auto* to = static_cast<typename To::Stored*>(item.to);
    const uint64_t first = tile * kSpanTileElems;
    team.each([&](uint32_t thread) {
#pragma unroll
      for (uint32_t u = 0; u < kSpanUnroll; u++) {
        const uint64_t i = first + u * kGradientThreads + thread;
        // Through 32 bits, as on the host.
        if (i < item.elems) to[i] = To::store(static_cast<typename To::Value>(static_cast<float>(From::load(from[i]))));
      }
    });
  }
};

// A GPU's threads call these two in any order, which does not affect the result.
__host__ __device__ inline void add_to(uint64_t* at, uint64_t value) {
#if defined(__CUDA_ARCH__)
  atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
#else
  *at += value;
#endif
}
__host__ __device__ inline void raise_to(uint64_t* at, uint64_t value) {
#if defined(__CUDA_ARCH__)
  atomicMax(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
#else
  if (value > *at) *at = value;
#endif
}

template <class T>
__host__ __device__ bool is_finite(typename T::Stored stored) {
  const auto value = T::load(stored);
  return value - value == 0;  // Inf - Inf is NaN
}

template <class T>
struct FindNonFinite {
  static __host__ __device__ void tile(const Team& team, const SpanCall&, const SpanItem& item, uint64_t tile) {
    const auto* from = static_cast<const typename T::Stored*>(item.from);
    const uint64_t first = tile * kSpanTileElems;
    team.each([&](uint32_t thread) {
#pragma unroll
      for (uint32_t u = 0; u < kSpanUnroll; u++) {
        const uint64_t i = first + u * kGradientThreads + thread;
        if (i < item.elems && !is_finite<T>(from[i])) raise_to(static_cast<uint64_t*>(item.to), ~i);
      }
    });
  }
};

__host__ __device__ inline uint64_t mix_word(uint64_t word, uint64_t index) {
  uint64_t z = (word + 1) * 0xbf58476d1ce4e5b9 ^ (index + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

struct Digest {
  static __host__ __device__ void tile(const Team& team, const SpanCall&, const SpanItem& item, uint64_t tile) {
    const auto* from = static_cast<const char*>(item.from);
    const uint64_t first = tile * kSpanTileElems;
    const uint64_t sum = team.sum<uint64_t>([&](uint32_t thread) {
      uint64_t part = 0;
      for (uint32_t u = 0; u < kSpanUnroll; u++) {
        const uint64_t word = first + u * kGradientThreads + thread, at = word * kDigestWordBytes;
        if (at >= item.elems) break;
        part += mix_word(read_word(from + at, item.elems - at), word);
      }
      return part;
    });
    team.each([&](uint32_t thread) {
      if (thread == 0) add_to(static_cast<uint64_t*>(item.to), sum);
    });
  }

 private:
  static __host__ __device__ uint64_t read_word(const char* from, uint64_t left) {
    if (left >= kDigestWordBytes) return read_element<uint32_t>(from);
    uint64_t word = left << 32;
    for (uint64_t b = 0; b < left; b++) word |= static_cast<uint64_t>(static_cast<uint8_t>(from[b])) << (8 * b);
    return word;
  }
};

// A word at any address, or at one known to be aligned: if they choose at run time, compilers generate byte accesses.
template <bool kAligned, class Word>
__host__ __device__ Word load_word(const char* from) {
  if constexpr (kAligned)
    return *reinterpret_cast<const Word*>(from);
  else
    return read_element<Word>(from);
}
template <bool kAligned, class Word>
__host__ __device__ void store_word(char* to, Word word) {
  if constexpr (kAligned)
    *reinterpret_cast<Word*>(to) = word;
  else
    write_element(to, word);
}

// A warp's block, quantised and as floats, and a thread's part of it: words of four elements, interleaved across the
// threads of the warp, so that their writes coalesce, which host memory needs.
class QuantisedBlock {
 public:
  static constexpr uint32_t kWordElems = 4;

  __host__ __device__ QuantisedBlock(const SpanCall& call, const SpanItem& item, uint64_t tile, uint32_t thread)
      : lane_(thread % Team::kWarpThreads) {
    const uint64_t block = tile * Team::kWarps + thread / Team::kWarpThreads;
    first_ = block * call.block_elems;
    const uint64_t left = first_ < item.elems ? item.elems - first_ : 0;
    elems_ = left < call.block_elems ? static_cast<uint32_t>(left) : call.block_elems;
    bytes_at_ = block * (call.block_elems + sizeof(float));
  }
  __host__ __device__ bool is_empty() const { return elems_ == 0; }
  __host__ __device__ bool has_scale() const { return lane_ == 0 && elems_ > 0; }
  __host__ __device__ uint64_t float_at(uint32_t elem) const { return (first_ + elem) * sizeof(float); }
  __host__ __device__ uint64_t scale_at() const { return bytes_at_; }
  __host__ __device__ uint64_t code_at(uint32_t elem) const { return bytes_at_ + sizeof(float) + elem; }
  // does(first element, how many) for each of the thread's words.
  template <class Does>
  __host__ __device__ void for_each_word(Does&& does) const {
    for (uint32_t elem = lane_ * kWordElems; elem < elems_; elem += Team::kWarpThreads * kWordElems)
      does(elem, elems_ - elem < kWordElems ? elems_ - elem : kWordElems);
  }

 private:
  const uint32_t lane_;
  uint32_t elems_;
  uint64_t first_, bytes_at_;
};

template <class Wire>
struct Quantise {
  template <bool kAligned>
  static __host__ __device__ void tile(const Team& team, const SpanCall& call, const SpanItem& item, uint64_t tile) {
    const auto* from = static_cast<const char*>(item.from);
    auto* to = static_cast<char*>(item.to);
    auto* errors = static_cast<char*>(item.errors);
    const auto value_at = [&](uint64_t at) {
      const auto value = load_word<kAligned, float>(from + at);
      return errors == nullptr ? value : value + load_word<kAligned, float>(errors + at);
    };
    const auto find_largest = [&](uint32_t thread) {
      const QuantisedBlock block(call, item, tile, thread);
      uint32_t largest = 0;
      block.for_each_word([&](uint32_t first, uint32_t n) {
        for (uint32_t i = first; i < first + n; i++) {
          const uint32_t one = magnitude_of(value_at(block.float_at(i)));
          largest = one > largest ? one : largest;
        }
      });
      return largest;
    };
    team.with_largest_of_warp(find_largest, [&](uint32_t thread, uint32_t largest) {
      const QuantisedBlock block(call, item, tile, thread);
      const float scale = scale_of<Wire>(largest);
      if (block.has_scale()) store_word<kAligned>(to + block.scale_at(), scale);
      block.for_each_word([&](uint32_t first, uint32_t n) {
        uint32_t word = 0;
        for (uint32_t i = 0; i < n; i++) {
          const uint64_t at = block.float_at(first + i);
          const float value = value_at(at);
          const uint8_t code = scale > 0 ? Wire::encode(value / scale) : uint8_t{0};
          if (errors != nullptr) store_word<kAligned>(errors + at, residual_of(value, Wire::decode(code) * scale, 1));
          word |= uint32_t{code} << (8 * i);
        }
        char* const codes = to + block.code_at(first);
        if (n == QuantisedBlock::kWordElems) return store_word<kAligned>(codes, word);
        for (uint32_t i = 0; i < n; i++) codes[i] = static_cast<char>(word >> (8 * i));
      });
    });
  }
};

template <class Wire>
struct Dequantise {
  template <bool kAligned>
  static __host__ __device__ void tile(const Team& team, const SpanCall& call, const SpanItem& item, uint64_t tile) {
    const auto* from = static_cast<const char*>(item.from);
    auto* to = static_cast<char*>(item.to);
    team.each([&](uint32_t thread) {
      const QuantisedBlock block(call, item, tile, thread);
      if (block.is_empty()) return;
      const auto scale = load_word<kAligned, float>(from + block.scale_at());
      block.for_each_word([&](uint32_t first, uint32_t n) {
        const char* const codes = from + block.code_at(first);
        uint32_t word = 0;
        if (n == QuantisedBlock::kWordElems)
          word = load_word<kAligned, uint32_t>(codes);
        else
          for (uint32_t i = 0; i < n; i++) word |= uint32_t{static_cast<uint8_t>(codes[i])} << (8 * i);
        for (uint32_t i = 0; i < n; i++)
          store_word<kAligned>(to + block.float_at(first + i),
                               Wire::decode(static_cast<uint8_t>(word >> (8 * i))) * scale);
      });
    });
  }
};

template <class Run>
struct AtAnyAddress {
  static __host__ __device__ void tile(const Team& team, const SpanCall& call, const SpanItem& item, uint64_t tile) {
    const auto all = reinterpret_cast<uintptr_t>(item.from) | reinterpret_cast<uintptr_t>(item.to) |
                     reinterpret_cast<uintptr_t>(item.errors);
    if (all % sizeof(float) == 0)
      Run::template tile<true>(team, call, item, tile);
    else
      Run::template tile<false>(team, call, item, tile);
  }
};

template <class Run>
__host__ __device__ void run_spans(const SpanCall& call, const Team& team) {
  for_each_tile(
      call, team, [&](const SpanItem& item) { return span_tiles(call, item); },
      [&](const SpanItem& item, uint64_t tile) { Run::tile(team, call, item, tile); });
}

// Calls body(Run{}) with the Run that executes the call.
template <class Body>
auto with_span_run(const SpanCall& call, Body&& body) {
  const bool is_half = call.small == DataType::kFloat16, is_double = call.wide == DataType::kFloat64;
  using Float = ElementOf<7>;
  using Double = ElementOf<8>;
  using Half = ElementOf<6>;
  using Bfloat = ElementOf<9>;
  switch (call.step) {
    case SpanStep::kNarrow:
      if (is_double) return is_half ? body(Convert<Double, Half>()) : body(Convert<Double, Bfloat>());
      return is_half ? body(Convert<Float, Half>()) : body(Convert<Float, Bfloat>());
    case SpanStep::kWiden:
      if (is_double) return is_half ? body(Convert<Half, Double>()) : body(Convert<Bfloat, Double>());
      return is_half ? body(Convert<Half, Float>()) : body(Convert<Bfloat, Float>());
    case SpanStep::kNonFinite:
      if (call.wide == DataType::kFloat16) return body(FindNonFinite<Half>());
      if (call.wide == DataType::kBfloat16) return body(FindNonFinite<Bfloat>());
      return is_double ? body(FindNonFinite<Double>()) : body(FindNonFinite<Float>());
    case SpanStep::kQuantise:
      return call.small == DataType::kInt8 ? body(AtAnyAddress<Quantise<Int8Wire>>())
                                           : body(AtAnyAddress<Quantise<E4m3Wire>>());
    case SpanStep::kDequantise:
      return call.small == DataType::kInt8 ? body(AtAnyAddress<Dequantise<Int8Wire>>())
                                           : body(AtAnyAddress<Dequantise<E4m3Wire>>());
    default: return body(Digest());
  }
}

// ---- matrices ------------------------------------------------------------------------------------------------------

// A tile is a row, or as many columns as a block has threads, or the whole matrix.
__host__ __device__ inline uint64_t factor_tiles(FactorPart part, const FactorItem& m) {
  if (part == FactorPart::kProject || part == FactorPart::kRebuild) return m.rows;
  return part == FactorPart::kFindQ ? (m.columns + kGradientThreads - 1) / kGradientThreads : 1;
}

__host__ __device__ inline void project_row(const Team& team, const FactorItem& m, uint64_t row) {
  float* error = m.error + row * m.columns;
  const float* data = m.data + row * m.columns;
  team.each([&](uint32_t thread) {
    for (uint64_t j = thread; j < m.columns; j += kGradientThreads) error[j] += data[j];
  });
  for (uint32_t k = 0; k < m.rank; k++) {
    const float* start = m.start + k * m.columns;
    const float sum = team.sum<float>([&](uint32_t thread) {
      float part = 0;
      for (uint64_t j = thread; j < m.columns; j += kGradientThreads) part += error[j] * start[j];
      return part;
    });
    team.each([&](uint32_t thread) {
      if (thread == 0) m.p[k * m.rows + row] = sum;
    });
  }
}

__host__ __device__ inline float dot(const Team& team, const float* a, const float* b, uint64_t count) {
  return team.sum<float>([&](uint32_t thread) {
    float part = 0;
    for (uint64_t i = thread; i < count; i += kGradientThreads) part += a[i] * b[i];
    return part;
  });
}

__host__ __device__ inline void orthonormalise(const Team& team, const FactorItem& m) {
  for (uint32_t c = 0; c < m.rank; c++) {
    float* column = m.p + c * m.rows;
    const float before = dot(team, column, column, m.rows);
    for (uint32_t d = 0; d < c; d++) {
      const float* other = m.p + d * m.rows;
      const float share = dot(team, column, other, m.rows);
      team.each([&](uint32_t thread) {
        for (uint64_t i = thread; i < m.rows; i += kGradientThreads) column[i] -= share * other[i];
      });
    }
    const float after = dot(team, column, column, m.rows);
    const float scale = after > 1e-10f * before ? 1 / sqrtf(after) : 0;
    team.each([&](uint32_t thread) {
      for (uint64_t i = thread; i < m.rows; i += kGradientThreads) column[i] *= scale;
    });
  }
}

// Element j of kColumns of Q's columns, from `k` on. What they have in common is read once.
template <uint32_t kColumns>
__host__ __device__ void find_q_elements(const FactorItem& m, uint64_t j, uint32_t k) {
  float sums[kColumns] = {};
#pragma unroll 4
  for (uint64_t i = 0; i < m.rows; i++) {
    const float error = m.error[i * m.columns + j];
#pragma unroll
    for (uint32_t c = 0; c < kColumns; c++) sums[c] += error * m.p[(k + c) * m.rows + i];
  }
#pragma unroll
  for (uint32_t c = 0; c < kColumns; c++) m.q[(k + c) * m.columns + j] = sums[c];
}

__host__ __device__ inline void find_q_columns(const Team& team, const FactorItem& m, uint64_t tile) {
  constexpr uint32_t kMany = 8, kSome = 4, kFew = 2;
  team.each([&](uint32_t thread) {
    const uint64_t j = tile * kGradientThreads + thread;
    if (j >= m.columns) return;
    uint32_t k = 0;
    for (; k + kMany <= m.rank; k += kMany) find_q_elements<kMany>(m, j, k);
    if (k + kSome <= m.rank) find_q_elements<kSome>(m, j, k), k += kSome;
    if (k + kFew <= m.rank) find_q_elements<kFew>(m, j, k), k += kFew;
    if (k < m.rank) find_q_elements<1>(m, j, k);
  });
}

__host__ __device__ inline void rebuild_row(const Team& team, const FactorItem& m, uint64_t row) {
  team.each([&](uint32_t thread) {
    for (uint64_t j = thread; j < m.columns; j += kGradientThreads) {
      float sum = 0;
      for (uint32_t k = 0; k < m.rank; k++) sum += m.q[k * m.columns + j] * m.p[k * m.rows + row];
      m.data[row * m.columns + j] = sum;
      const float left = m.error[row * m.columns + j] - sum;
      m.error[row * m.columns + j] = left - left == 0 ? left : 0;  // a NaN or Inf would persist in all later steps
    }
  });
}

__host__ __device__ inline void keep_q(const Team& team, const FactorItem& m) {
  for (uint32_t k = 0; k < m.rank; k++) {
    const float* column = m.q + k * m.columns;
    float* start = m.start + k * m.columns;
    const float size = dot(team, column, column, m.columns);
    const bool is_kept = size > 0 && size - size == 0;
    team.each([&](uint32_t thread) {
      for (uint64_t i = thread; i < m.columns && is_kept; i += kGradientThreads) start[i] = column[i] / sqrtf(size);
    });
  }
}

template <FactorPart kPart>
__host__ __device__ void run_factors(const FactorCall& call, const Team& team) {
  for_each_tile(
      call, team, [](const FactorItem& m) { return factor_tiles(kPart, m); },
      [&](const FactorItem& m, uint64_t tile) {
        if constexpr (kPart == FactorPart::kProject) project_row(team, m, tile);
        if constexpr (kPart == FactorPart::kOrthonormalise) orthonormalise(team, m);
        if constexpr (kPart == FactorPart::kFindQ) find_q_columns(team, m, tile);
        if constexpr (kPart == FactorPart::kRebuild) rebuild_row(team, m, tile);
        if constexpr (kPart == FactorPart::kKeepQ) keep_q(team, m);
      });
}

}  // namespace tutti::cuda
