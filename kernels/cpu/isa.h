// What each instruction set's translation unit offers to kernels.cpp.
#pragma once

#include "kernels/kernels.h"

namespace tutti {

// The reference, which is complete.
void fill_scalar(KernelTable& table);
// Overwrite what they do better. To be called, and their kernels to be run, only on a CPU that has the set.
void fill_avx2(KernelTable& table);
void fill_avx512(KernelTable& table);
void fill_avx512_bf16(KernelTable& table);
void fill_neon(KernelTable& table);

}  // namespace tutti
