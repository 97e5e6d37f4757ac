// AVX-512 F, BW, DQ, VL.
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/simd.h"

void tutti::fill_avx512(KernelTable& table) {
  table.isa = "avx512";
  fill_all(table);
}
