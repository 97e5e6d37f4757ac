// The body of the kernels for all-reduces by lines, one thread's part, on GPU and CPU.
#pragma once

#include <cstring>

#include "kernels/cuda/lines.h"
#include "kernels/cuda/run_program.h"

namespace tutti::cuda {

// Two words of data, each with the flag beside it. A half of 64 bits is written and read atomically; between a vector's
// elements PTX promises nothing. A reader that sees this launch's flag has the word beside it from the same store, so
// no order between stores is needed. The reader's relaxed load pairs with the writer's relaxed store of that half; and,
// for overwriting a line, the end of the reader's launch (which orders its loads before its next launch's stores) pairs
// with the line of that next launch that the writer has received before its own next one.
struct alignas(16) Line {
  uint32_t data0, flag0, data1, flag1;
};

__host__ __device__ inline void write_line(Line* to, const Line& line) {
  uint64_t halves[2];
  memcpy(halves, &line, sizeof halves);
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(halves[0]), "l"(halves[1]) : "memory");
#else
  __atomic_store_n(reinterpret_cast<uint64_t*>(to), halves[0], __ATOMIC_RELAXED);
  __atomic_store_n(reinterpret_cast<uint64_t*>(to) + 1, halves[1], __ATOMIC_RELAXED);
#endif
}

__host__ __device__ inline Line read_line(const Line* from) {
  uint64_t halves[2];
#if defined(__CUDA_ARCH__)
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(halves[0]), "=l"(halves[1])
               : "l"(from)
               : "memory");
#else
  halves[0] = __atomic_load_n(reinterpret_cast<const uint64_t*>(from), __ATOMIC_RELAXED);
  halves[1] = __atomic_load_n(reinterpret_cast<const uint64_t*>(from) + 1, __ATOMIC_RELAXED);
#endif
  Line line;
  memcpy(&line, halves, sizeof line);
  return line;
}

// One thread's part of a launch. Its steps, in order; anything may happen between two of them, so a CPU that stands in
// for all threads does each step for all of them.
template <class T>
class LineRun {
 public:
  using Stored = typename T::Stored;
  using Value = typename T::Value;
  static constexpr uint32_t kPerLine = kLineDataBytes / sizeof(Stored);

  // `epoch`: of this launch, from 1.
  __host__ __device__ LineRun(const LineCall& call, uint32_t epoch, Place place)
      : call_(call), epoch_(epoch), place_(place) {}

  // ---- one hop; a thread has one line

  __host__ __device__ void send() const {
    const uint32_t i = one_hop_index();
    if (i * kPerLine >= call_.elems) return;
    const Line line = line_of(read_input(i));
    for (int k = 1; k < call_.n_ranks; k++) write_line(one_hop_line(next(k), call_.rank, i), line);
  }

  // This and all functions that return bool: false when the launch was aborted.
  __host__ __device__ bool add_up() const {
    const uint32_t i = one_hop_index();
    if (i * kPerLine >= call_.elems) return true;
    Values sum;
    if (!sum_of_all(
            i, [&](int r) { return one_hop_line(call_.rank, r, i); }, &sum))
      return false;
    write_output(i, sum);
    return true;
  }

  // ---- two hops; a thread has a line of every rank's part in each of its turns

  __host__ __device__ void send_parts() const {
    for_each_turn([&](uint32_t turn, uint32_t i) {
      for (int k = 1; k < call_.n_ranks; k++)
        write_line(two_hop_line(next(k), 0, call_.rank, turn), line_of(read_input(in_part(next(k), i))));
      return true;
    });
  }

  __host__ __device__ bool add_up_part() const {
    return for_each_turn([&](uint32_t turn, uint32_t i) {
      const uint64_t mine = in_part(call_.rank, i);
      Values sum;
      if (!sum_of_all(
              mine, [&](int r) { return two_hop_line(call_.rank, 0, r, turn); }, &sum))
        return false;
      write_output(mine, sum);
      for (int k = 1; k < call_.n_ranks; k++) write_line(two_hop_line(next(k), 1, call_.rank, turn), line_of(sum));
      return true;
    });
  }

  __host__ __device__ bool take_parts() const {
    return for_each_turn([&](uint32_t turn, uint32_t i) {
      return for_each_line([&](int r) { return two_hop_line(call_.rank, 1, r, turn); },
                           [&](int r, const Line& line) {
                             if (r != call_.rank) write_output(in_part(r, i), values_of(line));
                           });
    });
  }

 private:
  struct Values {
    Stored at[kPerLine];
  };
  static constexpr int kAtOnce = 4;  // ranks whose lines are in flight

  __host__ __device__ int next(int k) const { return (call_.rank + k) % call_.n_ranks; }

  __host__ __device__ uint32_t one_hop_index() const { return place_.block * place_.n_threads + place_.thread; }
  __host__ __device__ Line* one_hop_line(int room, int from, uint32_t index) const {
    constexpr uint64_t kLines = kOneHopBytesMost / kLineDataBytes;
    const uint64_t half = epoch_ % 2 * kLineRanks + static_cast<uint32_t>(from);
    return reinterpret_cast<Line*>(call_.rooms[room]) + half * kLines + index;
  }

  // A block's lines lie together, so that their places do not depend on how many blocks a launch has.
  __host__ __device__ Line* two_hop_line(int room, uint32_t hop, int from, uint32_t turn) const {
    const auto n_ranks = static_cast<uint32_t>(call_.n_ranks);
    const uint64_t turns = two_hop_turns(n_ranks);
    const uint64_t area = (epoch_ % 2 * 2 + hop) * n_ranks + static_cast<uint32_t>(from);
    const uint64_t group = (area * kTwoHopBlocks + place_.block) * turns + turn;
    return reinterpret_cast<Line*>(call_.rooms[room]) + group * kTwoHopThreads + place_.thread;
  }
  __host__ __device__ uint32_t part_lines() const {
    return lines_of_part(divide_up(call_.elems, kPerLine), call_.n_ranks);
  }
  __host__ __device__ uint64_t in_part(int rank, uint32_t index) const {
    return static_cast<uint64_t>(rank) * part_lines() + index;
  }
  template <class Visit>
  __host__ __device__ bool for_each_turn(Visit&& visit) const {
    const uint32_t lines = part_lines();
    uint32_t i = place_.block * place_.n_threads + place_.thread;
    for (uint32_t turn = 0; i < lines; turn++, i += place_.n_blocks * place_.n_threads)
      if (!visit(turn, i)) return false;
    return true;
  }

  // Line `index` of the input; zeros beyond its end.
  __host__ __device__ Values read_input(uint64_t index) const {
    const char* from = static_cast<const char*>(call_.input);
    Values values;
    for (uint32_t i = 0; i < kPerLine; i++) {
      const uint64_t at = index * kPerLine + i;
      values.at[i] = at < call_.elems ? read_element<Stored>(from + at * sizeof(Stored)) : Stored{};
    }
    return values;
  }
  __host__ __device__ void write_output(uint64_t index, const Values& values) const {
    char* const to = static_cast<char*>(call_.output);
    for (uint32_t i = 0; i < kPerLine; i++) {
      const uint64_t at = index * kPerLine + i;
      if (at < call_.elems) write_element(to + at * sizeof(Stored), values.at[i]);
    }
  }

  __host__ __device__ Line line_of(const Values& values) const {
    uint32_t words[2];
    memcpy(words, &values, sizeof words);
    return {words[0], epoch_, words[1], epoch_};
  }
  __host__ __device__ static Values values_of(const Line& line) {
    const uint32_t words[2] = {line.data0, line.data1};
    Values values;
    memcpy(&values, words, sizeof values);
    return values;
  }

  // The sum of all ranks' values of line `index`, in the order of ranks; this rank's own come from its input.
  template <class LineAt>
  __host__ __device__ bool sum_of_all(uint64_t index, LineAt&& line_at, Values* result) const {
    const Values mine = read_input(index);
    Value sum[kPerLine] = {};
    const bool all = for_each_line(line_at, [&](int r, const Line& line) {
      const Values its = r == call_.rank ? mine : values_of(line);
      for (uint32_t i = 0; i < kPerLine; i++) {
        const Value value = T::load(its.at[i]);
        sum[i] = r == 0 ? value : combine<T>(call_.op, sum[i], value);
      }
    });
    for (uint32_t i = 0; i < kPerLine; i++)
      result->at[i] = T::store(call_.divisor != 0 ? T::divide(sum[i], call_.divisor) : sum[i]);
    return all;
  }

  // Visits all ranks in order with the line that came from each; this rank's own is empty. Loads of several lines are
  // in flight at a time.
  template <class LineAt, class Visit>
  __host__ __device__ bool for_each_line(LineAt&& line_at, Visit&& visit) const {
    for (int first = 0; first < call_.n_ranks; first += kAtOnce) {
      Line lines[kAtOnce] = {};
      if (!receive(first, line_at, lines)) return false;
#pragma unroll
      for (int g = 0; g < kAtOnce; g++)
        if (first + g < call_.n_ranks) visit(first + g, lines[g]);
    }
    return true;
  }

  template <class LineAt>
  __host__ __device__ bool receive(int first, LineAt&& line_at, Line (&lines)[kAtOnce]) const {
    for (uint32_t turn = 1;; turn++) {
      bool all = true;
#pragma unroll
      for (int g = 0; g < kAtOnce; g++)
        if (first + g < call_.n_ranks && first + g != call_.rank) lines[g] = read_line(line_at(first + g));
#pragma unroll
      for (int g = 0; g < kAtOnce; g++)
        if (first + g < call_.n_ranks && first + g != call_.rank)
          all = all && lines[g].flag0 == epoch_ && lines[g].flag1 == epoch_;
      if (all) return true;
      pause_thread();
      constexpr uint32_t kTurnsPerLook = 4096;  // the word is in host memory, which is slow to read
      if (turn % kTurnsPerLook == 0 && load_acquire(call_.abort) != 0) return false;
    }
  }

  const LineCall& call_;
  const uint32_t epoch_;
  const Place place_;
};

}  // namespace tutti::cuda
