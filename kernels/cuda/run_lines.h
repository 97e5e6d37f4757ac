// The body of the kernel for small all-reduces, one thread's part, on GPU and CPU.
#pragma once

#include <cstring>

#include "kernels/cuda/lines.h"
#include "kernels/cuda/run_program.h"

namespace tutti::cuda {

// Two words of data, each with the flag beside it: each half is written and read at once.
struct alignas(16) Line {
  uint32_t data0, flag0, data1, flag1;
};

__host__ __device__ inline void write_line(Line* to, const Line& line) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(line.data0), "r"(line.flag0),
               "r"(line.data1), "r"(line.flag1)
               : "memory");
#else
  uint64_t halves[2];
  memcpy(halves, &line, sizeof halves);
  __atomic_store_n(reinterpret_cast<uint64_t*>(to), halves[0], __ATOMIC_RELAXED);
  __atomic_store_n(reinterpret_cast<uint64_t*>(to) + 1, halves[1], __ATOMIC_RELAXED);
#endif
}

__host__ __device__ inline Line read_line(const Line* from) {
  Line line;
#if defined(__CUDA_ARCH__)
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(line.data0), "=r"(line.flag0), "=r"(line.data1), "=r"(line.flag1)
               : "l"(from)
               : "memory");
#else
  uint64_t halves[2];
  halves[0] = __atomic_load_n(reinterpret_cast<const uint64_t*>(from), __ATOMIC_RELAXED);
  halves[1] = __atomic_load_n(reinterpret_cast<const uint64_t*>(from) + 1, __ATOMIC_RELAXED);
  memcpy(&line, halves, sizeof line);
#endif
  return line;
}

template <class T>
class LineRun {
 public:
  using Stored = typename T::Stored;
  using Value = typename T::Value;
  static constexpr uint32_t kPerLine = kLineDataBytes / sizeof(Stored);

  // `epoch`: of this launch, from 1.
  __host__ __device__ LineRun(const LineCall& call, uint32_t epoch) : call_(call), epoch_(epoch) {}

  // False when the launch was aborted.
  __host__ __device__ bool run(uint32_t index) const {
    if (index * kPerLine >= call_.elems) return true;
    Stored mine[kPerLine];
    read_input(index, mine);
    send(index, mine);
    Value sum[kPerLine] = {};
    for (int r = 0; r < call_.n_ranks; r++) {
      Stored its[kPerLine];
      memcpy(its, mine, sizeof its);
      if (r != call_.rank && !receive(r, index, its)) return false;
      for (uint32_t i = 0; i < kPerLine; i++) {
        const Value value = T::load(its[i]);
        sum[i] = r == 0 ? value : combine<T>(call_.op, sum[i], value);
      }
    }
    write_output(index, sum);
    return true;
  }

 private:
  __host__ __device__ Line* line_at(int room, int from, uint32_t index) const {
    constexpr uint64_t kLines = kLineBytesMost / kLineDataBytes;
    const uint64_t half = epoch_ % 2 * kLineRanks + static_cast<uint32_t>(from);
    return reinterpret_cast<Line*>(call_.rooms[room]) + half * kLines + index;
  }

  __host__ __device__ void read_input(uint32_t index, Stored (&values)[kPerLine]) const {
    const char* from = static_cast<const char*>(call_.input);
    for (uint32_t i = 0; i < kPerLine; i++) {
      const uint64_t at = static_cast<uint64_t>(index) * kPerLine + i;
      values[i] = at < call_.elems ? read_element<Stored>(from + at * sizeof(Stored)) : Stored{};
    }
  }

  __host__ __device__ void send(uint32_t index, const Stored (&values)[kPerLine]) const {
    uint32_t words[2];
    memcpy(words, values, sizeof words);
    const Line line{words[0], epoch_, words[1], epoch_};
    for (int k = 1; k < call_.n_ranks; k++)
      write_line(line_at((call_.rank + k) % call_.n_ranks, call_.rank, index), line);
  }

  __host__ __device__ bool receive(int from, uint32_t index, Stored (&values)[kPerLine]) const {
    const Line* const at = line_at(call_.rank, from, index);
    Line line = read_line(at);
    for (uint32_t turn = 1; line.flag0 != epoch_ || line.flag1 != epoch_; turn++) {
      pause_thread();
      constexpr uint32_t kTurnsPerLook = 4096;
      if (turn % kTurnsPerLook == 0 && load_acquire(call_.abort) != 0) return false;
      line = read_line(at);
    }
    const uint32_t words[2] = {line.data0, line.data1};
    memcpy(values, words, sizeof words);
    return true;
  }

  __host__ __device__ void write_output(uint32_t index, const Value (&sum)[kPerLine]) const {
    char* const to = static_cast<char*>(call_.output);
    for (uint32_t i = 0; i < kPerLine; i++) {
      const uint64_t at = static_cast<uint64_t>(index) * kPerLine + i;
      if (at >= call_.elems) return;
      write_element(to + at * sizeof(Stored), T::store(call_.divisor != 0 ? T::divide(sum[i], call_.divisor) : sum[i]));
    }
  }

  const LineCall& call_;
  const uint32_t epoch_;
};

}  // namespace tutti::cuda
