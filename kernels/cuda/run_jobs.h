// The body of the copying and reducing kernels, one thread's part: the same template on the GPU and, thread by thread,
// on a CPU, where the tests run it.
#pragma once

#include <cstring>

#include "kernels/cuda/jobs.h"
#include "kernels/element.h"

namespace tutti::cuda {

struct alignas(16) Pack {
  uint32_t words[4];
};

// A thread of the grid.
struct Place {
  uint32_t block, n_blocks, thread, n_threads;
};
#if defined(__CUDACC__)
__device__ inline Place here() {
  return {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x};
}
#endif

__host__ __device__ inline uint32_t load_acquire(const uint32_t* at) {
#if defined(__CUDA_ARCH__)
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
#else
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

template <class Stored>
__host__ __device__ Stored read_element(const char* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(Stored) == 0) return *reinterpret_cast<const Stored*>(from);
  Stored out;
  memcpy(&out, from, sizeof out);
  return out;
}

template <class Stored>
__host__ __device__ void write_element(char* to, Stored value) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(Stored) == 0) {
    *reinterpret_cast<Stored*>(to) = value;
  } else {
    memcpy(to, &value, sizeof value);
  }
}

// A job, and where its pointers are.
struct JobView {
  const void* const* src;
  const void* const* dst;
  int n_src, n_dst;
  uint64_t elems;
  uint32_t divisor;
  RedOp op;
  const Scale* scales;  // by source; null: none
  uint32_t tile_turns;  // kUnroll, or 1
};

inline constexpr uint32_t kWordBytes = 4;

// One job as a thread sees it. kUnroll: how many packs it has in flight.
template <class T, int kUnroll, bool kCopies>
class JobRun {
 public:
  using Stored = typename T::Stored;
  using Value = typename T::Value;
  static constexpr int kPerPack = 16 / sizeof(Stored);
  static constexpr bool kByWords = kCopies && sizeof(Stored) == 1;

  __host__ __device__ explicit JobRun(const JobView& job) : job_(job) {}

  // Tile `tile` of the job. The elements before the first whole pack or word and after the last one are done with the
  // first tile; if there are no packs or words, all is done by elements.
  __host__ __device__ void tile(uint64_t tile, uint32_t thread, uint32_t n_threads) const {
    const uint64_t tile_elems = static_cast<uint64_t>(job_.tile_turns) * n_threads * kPerPack;
    uint64_t head = 0;
    const uint32_t unit = packs_fit(&head) ? kPerPack : kByWords && words_fit(&head) ? kWordBytes : 0;
    const uint64_t units = unit != 0 ? (job_.elems - head) / unit : 0;
    if (unit == 0 || tile == 0) {
      const uint64_t first = unit != 0 ? 0 : tile * tile_elems;
      const uint64_t end = unit != 0 ? job_.elems - units * unit : least(first + tile_elems, job_.elems);
      elements(first, end, head, units * unit, thread, n_threads);
    }
    if (unit == 0) return;
    const uint64_t n = tile_elems / unit, first = tile * n, end = least(first + n, units);
    if constexpr (kByWords) {
      if (unit == kWordBytes) return words(head, first + thread, end, units, n_threads);
    }
    packs(head * sizeof(Stored), first + thread, end, job_.tile_turns == kUnroll && first + n == end, n_threads);
  }

 private:
  __host__ __device__ static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
  __host__ __device__ const char* src(int s) const { return static_cast<const char*>(job_.src[s]); }
  __host__ __device__ char* dst(int d) const { return static_cast<char*>(const_cast<void*>(job_.dst[d])); }

  // Whether all pointers are equally far from a multiple of 16: then packs can be used after the first `head` elements.
  __host__ __device__ bool packs_fit(uint64_t* head) const {
    const uint64_t past = reinterpret_cast<uintptr_t>(src(0)) % 16;
    if (past % sizeof(Stored) != 0) return false;
    for (int s = 1; s < job_.n_src; s++)
      if (reinterpret_cast<uintptr_t>(src(s)) % 16 != past) return false;
    for (int d = 0; d < job_.n_dst; d++)
      if (reinterpret_cast<uintptr_t>(dst(d)) % 16 != past) return false;
    *head = (16 - past) % 16 / sizeof(Stored);
    if (*head > job_.elems) *head = job_.elems;
    return true;
  }

  // Whether all destinations of a copy have their words at the same places. `head`: the bytes before the first word.
  __host__ __device__ bool words_fit(uint64_t* head) const {
    const uint64_t past = reinterpret_cast<uintptr_t>(dst(0)) % kWordBytes;
    for (int d = 1; d < job_.n_dst; d++)
      if (reinterpret_cast<uintptr_t>(dst(d)) % kWordBytes != past) return false;
    *head = least((kWordBytes - past) % kWordBytes, job_.elems);
    return true;
  }

  // Four bytes that may span two words, both of which belong to the source unless this is at its edge.
  __host__ __device__ static uint32_t word_at(const char* from, bool is_at_edge) {
    const auto past = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % kWordBytes);
    if (past == 0 || is_at_edge) return read_element<uint32_t>(from);
    const auto* both = reinterpret_cast<const uint32_t*>(from - past);
    return both[0] >> (8 * past) | both[1] << (32 - 8 * past);
  }

  // A thread's words of `first` to `end`, of `n_words` in all. Several are loaded before the first is stored.
  __host__ __device__ void words(uint64_t head, uint64_t first, uint64_t end, uint64_t n_words,
                                 uint32_t n_threads) const {
    constexpr uint32_t kGroup = 4;
#pragma unroll 1
    for (uint64_t w = first; w < end; w += uint64_t{kGroup} * n_threads) {
      uint32_t group[kGroup] = {};
#pragma unroll
      for (uint32_t g = 0; g < kGroup; g++) {
        const uint64_t i = w + g * n_threads;
        if (i < end) group[g] = word_at(src(0) + head + i * kWordBytes, i == 0 || i + 1 == n_words);
      }
#pragma unroll 1
      for (int d = 0; d < job_.n_dst; d++) {
#pragma unroll
        for (uint32_t g = 0; g < kGroup; g++) {
          const uint64_t i = w + g * n_threads;
          if (i < end) *reinterpret_cast<uint32_t*>(dst(d) + head + i * kWordBytes) = group[g];
        }
      }
    }
  }

  __host__ __device__ Value scale(int s) const {
    Stored factor;
    const Scale& scale = job_.scales[s];
    memcpy(&factor, scale.at != nullptr ? scale.at : &scale.bits, sizeof factor);
    return T::load(factor);
  }

  // A source's element, multiplied by its factor if there are any.
  __host__ __device__ Value value_of(Stored stored, Value factor) const {
    const Value value = T::load(stored);
    return job_.scales != nullptr ? T::load(T::store(T::mul(value, factor))) : value;
  }

  // Elements `first` to `end`, not counting the `gap` elements that follow the first `head` ones.
  __host__ __device__ void elements(uint64_t first, uint64_t end, uint64_t head, uint64_t gap, uint32_t thread,
                                    uint32_t n_threads) const {
#pragma unroll 1
    for (uint64_t left = first + thread; left < end; left += n_threads) {
      const uint64_t i = left < head ? left : left + gap;
      Stored result = read_element<Stored>(src(0) + i * sizeof(Stored));
      if constexpr (!kCopies) {
        Value sum = value_of(result, factor_of(0));
#pragma unroll 1
        for (int s = 1; s < job_.n_src; s++)
          sum = combine<T>(job_.op, sum, value_of(read_element<Stored>(src(s) + i * sizeof(Stored)), factor_of(s)));
        result = T::store(job_.divisor != 0 ? T::divide(sum, job_.divisor) : sum);
      }
#pragma unroll 1
      for (int d = 0; d < job_.n_dst; d++) write_element(dst(d) + i * sizeof(Stored), result);
    }
  }

  __host__ __device__ Value factor_of(int s) const {
    return job_.scales != nullptr ? scale(s) : Value{};
  }

  // A thread's packs of `first` to `end`, kUnroll of them if the tile is whole.
  __host__ __device__ void packs(uint64_t head_bytes, uint64_t first, uint64_t end, bool is_whole,
                                 uint32_t n_threads) const {
    if (is_whole) return pack_group(head_bytes + first * 16, n_threads);
#pragma unroll 1
    for (uint64_t p = first; p < end; p += n_threads) one_pack(head_bytes + p * 16);
  }

  // kUnroll packs, `stride` apart, beginning `at` bytes into the buffers. All of a source's loads are issued before the
  // first is used.
  __host__ __device__ void pack_group(uint64_t at, uint32_t stride) const {
    Pack packs[kUnroll];
    load_group(0, at, stride, packs);
    if constexpr (!kCopies) {
      Value sums[kUnroll][kPerPack];
      take_group<true>(0, packs, sums);
#pragma unroll 1
      for (int s = 1; s < job_.n_src; s++) {
        load_group(s, at, stride, packs);
        take_group<false>(s, packs, sums);
      }
      finish_group(sums, packs);
    }
    store_group(at, stride, packs);
  }

  // A single pack: the loads of kUnroll sources are issued before the first is used.
  __host__ __device__ void one_pack(uint64_t at) const {
    Pack result[1];
    if constexpr (kCopies) {
      load_group(0, at, 0, result);
    } else {
      Value sums[1][kPerPack] = {};
      switch (job_.op) {
        case RedOp::kProd: take_sources<RedOp::kProd>(at, sums); break;
        case RedOp::kMin: take_sources<RedOp::kMin>(at, sums); break;
        case RedOp::kMax: take_sources<RedOp::kMax>(at, sums); break;
        default: take_sources<RedOp::kSum>(at, sums);
      }
      finish_group(sums, result);
    }
    store_group(at, 0, result);
  }

  template <RedOp kOp>
  __host__ __device__ void take_sources(uint64_t at, Value (&sums)[1][kPerPack]) const {
#pragma unroll 1
    for (int first = 0; first < job_.n_src; first += kUnroll) {
      Pack packs[kUnroll][1] = {};
#pragma unroll
      for (int g = 0; g < kUnroll; g++)
        if (first + g < job_.n_src) load_group(first + g, at, 0, packs[g]);
#pragma unroll
      for (int g = 0; g < kUnroll; g++) {
        if (first + g >= job_.n_src) break;
        const Value factor = factor_of(first + g);
        if (first + g == 0)
          take_with<true, kOp>(factor, packs[g], sums);
        else
          take_with<false, kOp>(factor, packs[g], sums);
      }
    }
  }

  template <int kGroup>
  __host__ __device__ void store_group(uint64_t at, uint32_t stride, const Pack (&packs)[kGroup]) const {
#pragma unroll 1
    for (int d = 0; d < job_.n_dst; d++) {
      if (kCopies && dst(d) == src(0)) continue;
#pragma unroll
      for (int g = 0; g < kGroup; g++)
        *reinterpret_cast<Pack*>(dst(d) + at + static_cast<uint64_t>(g) * stride * 16) = packs[g];
    }
  }

  template <int kGroup>
  __host__ __device__ void load_group(int s, uint64_t at, uint32_t stride, Pack (&packs)[kGroup]) const {
#pragma unroll
    for (int g = 0; g < kGroup; g++)
      packs[g] = *reinterpret_cast<const Pack*>(src(s) + at + static_cast<uint64_t>(g) * stride * 16);
  }

  template <bool kFirst, int kGroup>
  __host__ __device__ void take_group(int s, const Pack (&packs)[kGroup], Value (&sums)[kGroup][kPerPack]) const {
    const Value factor = factor_of(s);
    switch (job_.op) {  // once for all elements
      case RedOp::kProd: return take_with<kFirst, RedOp::kProd>(factor, packs, sums);
      case RedOp::kMin: return take_with<kFirst, RedOp::kMin>(factor, packs, sums);
      case RedOp::kMax: return take_with<kFirst, RedOp::kMax>(factor, packs, sums);
      default: return take_with<kFirst, RedOp::kSum>(factor, packs, sums);
    }
  }

  template <bool kFirst, RedOp kOp, int kGroup>
  __host__ __device__ void take_with(Value factor, const Pack (&packs)[kGroup], Value (&sums)[kGroup][kPerPack]) const {
#pragma unroll
    for (int g = 0; g < kGroup; g++) {
      Stored stored[kPerPack];
      memcpy(stored, &packs[g], sizeof stored);
#pragma unroll
      for (int i = 0; i < kPerPack; i++) {
        const Value value = value_of(stored[i], factor);
        sums[g][i] = kFirst ? value : combine<T>(kOp, sums[g][i], value);
      }
    }
  }

  template <int kGroup>
  __host__ __device__ void finish_group(const Value (&sums)[kGroup][kPerPack], Pack (&packs)[kGroup]) const {
#pragma unroll
    for (int g = 0; g < kGroup; g++) {
      Stored stored[kPerPack];
#pragma unroll
      for (int i = 0; i < kPerPack; i++)
        stored[i] = T::store(job_.divisor != 0 ? T::divide(sums[g][i], job_.divisor) : sums[g][i]);
      memcpy(&packs[g], stored, sizeof stored);
    }
  }

  const JobView job_;
};

template <class T, int kUnroll, bool kCopies>
__host__ __device__ void run_jobs(const JobList& list, Place place) {
  if (list.stop != nullptr && load_acquire(list.stop) != 0) return;
  int j = 0;
  while (place.block >= list.jobs[j].end_tile) j++;
  const Job& job = list.jobs[j];
  const uint32_t first_tile = j == 0 ? 0 : list.jobs[j - 1].end_tile;
  const void* const* pointers = list.pointers + job.first_pointer;
  const JobRun<T, kUnroll, kCopies> run({pointers, pointers + job.n_src, job.n_src, job.n_dst, job.elems, job.divisor,
                                         list.op, list.scaled ? list.scales : nullptr, list.tile_turns});
  run.tile(place.block - first_tile, place.thread, place.n_threads);
}

}  // namespace tutti::cuda
