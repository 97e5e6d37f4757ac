// Functions in headers that CPU and GPU share have CUDA's markers, which are empty for other compilers.
#pragma once

#if !defined(__CUDACC__)
#define __host__
#define __device__
#endif
