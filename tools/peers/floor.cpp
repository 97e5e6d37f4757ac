// The floors of floor.h as a program. --variant mapped, cma, bounce or sockets.
#include "floor.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bench {
namespace {

float sum_at(const float* const* ins, int n_ins, size_t i) {
  float sum = ins[0][i];
  for (int k = 1; k < n_ins; k++) sum += ins[k][i];
  return sum;
}

bool is_aligned(const float* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

#if defined(__x86_64__)
// Returns how many elements it has processed.
size_t add_past_cache(float* const* outs, int n_outs, const float* const* ins, int n_ins, size_t elems) {
  size_t i = 0;
  for (; i + 16 <= elems; i += 16) {
    __m128 sums[4];
    for (int v = 0; v < 4; v++) sums[v] = _mm_loadu_ps(ins[0] + i + 4 * v);
    for (int k = 1; k < n_ins; k++) {
      for (int v = 0; v < 4; v++) sums[v] = _mm_add_ps(sums[v], _mm_loadu_ps(ins[k] + i + 4 * v));
    }
    for (int j = 0; j < n_outs; j++) {
      for (int v = 0; v < 4; v++) _mm_stream_ps(outs[j] + i + 4 * v, sums[v]);
    }
  }
  _mm_sfence();
  return i;
}
#else
size_t add_past_cache(float* const*, int, const float* const*, int, size_t) {
  return 0;
}
#endif

// Compilers only vectorise simple loops.
void add_two(float* __restrict out, const float* __restrict a, const float* __restrict b, size_t elems) {
  for (size_t i = 0; i < elems; i++) out[i] = a[i] + b[i];
}

void add_two_twice(float* __restrict out, float* __restrict other, const float* __restrict a, const float* __restrict b,
                   size_t elems) {
  for (size_t i = 0; i < elems; i++) out[i] = other[i] = a[i] + b[i];
}

}  // namespace

void add(float* const* outs, int n_outs, const float* const* ins, int n_ins, size_t elems, bool past_cache) {
  if (past_cache && std::all_of(outs, outs + n_outs, is_aligned)) {
    const size_t done = add_past_cache(outs, n_outs, ins, n_ins, elems);
    for (size_t i = done; i < elems; i++) {
      for (int j = 0; j < n_outs; j++) outs[j][i] = sum_at(ins, n_ins, i);
    }
    return;
  }
  if (n_ins == 1 && n_outs == 1) {
    std::copy_n(ins[0], elems, outs[0]);
    return;
  }
  if (n_ins == 2 && n_outs == 1) return add_two(outs[0], ins[0], ins[1], elems);
  if (n_ins == 2 && n_outs == 2) return add_two_twice(outs[0], outs[1], ins[0], ins[1], elems);
  // In blocks that stay in the first-level cache.
  constexpr size_t kBlock = 1024;
  float sums[kBlock];
  for (size_t from = 0; from < elems; from += kBlock) {
    const size_t n = std::min(kBlock, elems - from);
    std::copy_n(ins[0] + from, n, sums);
    for (int k = 1; k < n_ins; k++) {
      const float* in = ins[k] + from;
      for (size_t i = 0; i < n; i++) sums[i] += in[i];
    }
    for (int j = 0; j < n_outs; j++) std::copy_n(sums, n, outs[j] + from);
  }
}

size_t slice_begin(size_t elems, int rank, int n_ranks) {
  if (rank == n_ranks) return elems;
  return elems * static_cast<size_t>(rank) / static_cast<size_t>(n_ranks) / 16 * 16;
}

}  // namespace bench

int main(int argc, char** argv) {
  const bench::Settings settings = bench::parse(argc, argv);
  const auto shared =
      settings.variant == "sockets" ? bench::share_sockets(settings) : bench::share_memory(settings.variant, settings);
  return bench::run_forked(settings, [&](int rank) {
    bench::Meet meet(settings.meet, rank, settings.n_ranks);
    const auto library = shared->library_of(rank);
    bench::measure(*library, meet, settings);
  });
}
