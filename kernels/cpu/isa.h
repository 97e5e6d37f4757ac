// What each instruction set's translation unit offers to kernels.cpp.
#pragma once

#include "kernels/kernels.h"

namespace tutti {

// The reference: complete.
void fill_scalar(KernelTable& table);
// Overwrite what they do better. Only to be called, and their kernels only to be run, on a CPU that has the set.
void fill_avx2(KernelTable& table);
void fill_avx512(KernelTable& table);
void fill_avx512_bf16(KernelTable& table);
void fill_neon(KernelTable& table);

}  // namespace tutti
