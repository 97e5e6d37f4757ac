// Functions of headers that CPU and GPU share are marked as CUDA has it; other compilers see nothing of that.
#pragma once

#if !defined(__CUDACC__)
#define __host__
#define __device__
#endif
