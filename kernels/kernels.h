// kernels: the arithmetic. One table of functions per instruction set, filled in from the scalar reference first and
// then overwritten by what this CPU can do (chosen once, at run time; TUTTI_CPU_ISA lowers it). Pure functions of their
// arguments: no state, no allocation, safe from any thread. Includes base only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "kernels/quantised.h"

namespace tutti {

inline constexpr int kMaxDestinations = 4;

// Any number of sources, though a CPU's prefetcher follows only eight streams or so.
// dst[0..n_dst) = finish(src[0] op src[1] op ... ), left to right, element by element. Any alignment of every pointer.
// A destination may be the same pointer as a source (in place); otherwise they must not overlap.
// 16- and 8-bit floats: converted to float, accumulated in float, rounded to nearest even once per output; values
// beyond the 8-bit floats' range saturate, and NaN becomes each type's one NaN (kernels/cpu/convert.h). Min and max
// are commutative and associative bit by bit: -0 is less than +0, and if any source is NaN, the result is one NaN, of
// float and double that with all bits set. Integers wrap. All tables give the same bits, except for which NaN a sum or
// product of floats or doubles is: that depends on the order of operands, and on the compiler. kAvg: the sum, divided
// by `divisor` if that is not 0 (integers truncate towards zero). With divisor 0 it is a partial sum. n_src == 1 only
// divides, or copies all bits as they are and skips a destination that is the source.
struct ReduceArgs {
  const void* const* src = nullptr;
  void* dst[kMaxDestinations];
  int n_src = 0;
  int n_dst = 0;
  size_t elems = 0;
  uint32_t divisor = 0;
  // Write dst[0 .. n_stream) with non-temporal stores. The kernel then ends with a store fence.
  int n_stream = 0;
};
using ReduceKernel = void (*)(const ReduceArgs&);

// Floats as blocks of a scale (a float) and then one byte per element: a code times the scale is the value. A block's
// largest magnitude, A, becomes the largest code: 127 (int8), with errors of at most A / 254, or 448 (f8e4m3), of at
// most A / 28. A block with a magnitude above kQuantisableTo, an infinity or a NaN becomes NaNs; one with all
// magnitudes below kQuantisableFrom becomes zeros, so that neither scales nor products are subnormal, which CPUs may be
// set to flush. block_elems: 64, 128, 192 or 256; the last block may be shorter. Any alignment; no overlaps.
using QuantiseKernel = void (*)(const void* from, size_t elems, size_t block_elems, void* to);
// adds: the floats are added to those at `to`.
using DequantiseKernel = void (*)(const void* from, size_t elems, size_t block_elems, void* to, bool adds);

// 16- and 8-bit floats to floats, and back, rounded as by a ReduceKernel. For sums of many steps, which travel as
// floats. Any alignment; no overlaps.
using ConvertKernel = void (*)(const void* from, size_t elems, void* to);

struct KernelTable {
  const char* isa;  // "scalar", "avx2", "avx512", "avx512_bf16", "neon"
  ReduceKernel reduce[kRedOps][kDataTypes];
  QuantiseKernel quantise[2];  // int8, f8e4m3
  DequantiseKernel dequantise[2];
  ConvertKernel widen[kDataTypes], narrow[kDataTypes];  // of small floats only
};

// The best table for this CPU. Never fails: an unknown TUTTI_CPU_ISA was refused by kernels_check.
const KernelTable& kernels();
// All tables that this CPU can run, scalar first: for tests and benchmarks.
std::vector<const KernelTable*> all_kernel_tables();
// Whether TUTTI_CPU_ISA is one that this build and CPU have.
Result<void> kernels_check();

}  // namespace tutti
