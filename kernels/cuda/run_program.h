// The interpreter of schedules: what one block does for a stripe of a lane, the same template on the GPU and on a CPU,
// where a block is one thread.
#pragma once

#if !defined(__CUDACC__)
#include <sched.h>
#endif

#include "kernels/cuda/program.h"
#include "kernels/cuda/run_jobs.h"

namespace tutti::cuda {

__host__ __device__ inline void store_release(uint32_t* at, uint32_t value) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
#else
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}

__host__ __device__ inline void pause_thread() {
#if !defined(__CUDA_ARCH__) && !defined(__CUDACC__)
  sched_yield();  // there are more blocks than CPUs
#endif
}

// Afterwards all of the block's threads see what each has written.
__host__ __device__ inline void sync_block() {
#if defined(__CUDA_ARCH__)
  __syncthreads();
#endif
}

// What a block's threads share.
struct BlockRoom {
  const void* src[kMaxProgramSources];
  const void* dst[2];
  uint32_t failed;
};

template <class T, int kUnroll>
class LaneRun {
 public:
  static constexpr uint64_t kElemBytes = sizeof(typename T::Stored);

  __host__ __device__ LaneRun(const ProgramCall& call, Place place, BlockRoom* room)
      : call_(call),
        place_(place),
        room_(*room),
        rank_(place.block / (call.n_lanes * call.n_stripes)),
        stripe_(place.block % call.n_stripes),
        program_(call.programs[rank_]),
        lane_(program_.lanes[place.block / call.n_stripes % call.n_lanes]),
        slot_elems_(call.slot_bytes / kElemBytes) {
    const uint64_t line = kLineBytes / kElemBytes;
    stripe_elems_ = round_up((call.block_elems + call.n_stripes - 1) / call.n_stripes, line);
    const uint64_t skipped = stripe_ * stripe_elems_;
    my_elems_ = skipped >= call.block_elems ? 0 : min(stripe_elems_, call.block_elems - skipped);
    const uint64_t per_round = call.n_chunks * slot_elems_;
    // The first stripe's, which is the longest: all stripes and ranks have the same number of rounds.
    rounds_ = stripe_elems_ <= per_round ? 1 : (stripe_elems_ - 1) / per_round + 1;
    const uint64_t even = stripe_elems_ == 0 ? 0 : (stripe_elems_ - 1) / (rounds_ * call.n_chunks) + 1;
    chunk_elems_ = min(slot_elems_, round_up(even, line));
  }

  __host__ __device__ void run() {
    if (place_.thread == 0) room_.failed = 0;
    for (uint64_t round = 0; round < rounds_; round++)
      for (uint32_t s = 0; s < lane_.n_steps; s++)
        if (!step(program_.steps[lane_.first_step + s], round)) return;
  }

 private:
  static constexpr uint64_t kLineBytes = 128;

  __host__ __device__ static uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }
  __host__ __device__ static uint64_t round_up(uint64_t a, uint64_t to) { return (a + to - 1) / to * to; }

  __host__ __device__ const LinkEnd& end(int32_t i) const {
    return program_.ends[stripe_ * program_.n_ends + static_cast<uint32_t>(i)];
  }
  __host__ __device__ const LinkEnd& recv_end(const ProgramStep& step, int i) const {
    return end(program_.recvs[step.first_recv + i]);
  }
  __host__ __device__ char* slot(const LinkEnd& end) const {
    return end.slots + static_cast<uint64_t>(*end.done % call_.n_slots) * call_.slot_bytes;
  }

  // Waits until the condition holds; false when the launch was aborted.
  template <class Condition>
  __host__ __device__ bool wait(Condition&& holds) const {
    for (uint32_t turn = 1; !holds(); turn++) {
      pause_thread();
      constexpr uint32_t kTurnsPerLook = 4096;  // the word is in host memory, which is slow to read
      if (turn % kTurnsPerLook == 0 && call_.abort != nullptr && load_acquire(call_.abort) != 0) return false;
    }
    return true;
  }

  // One thread waits for what a step needs, and tells the others where its data are.
  __host__ __device__ bool prepare(const ProgramStep& step, uint64_t begin) {
    for (int i = 0; i < step.n_recv; i++) {
      const LinkEnd& from = recv_end(step, i);
      if (!wait([&] { return load_acquire(from.head) != *from.done; })) return false;
    }
    if (step.send >= 0) {
      const LinkEnd& to = end(step.send);
      if (!wait([&] { return *to.done - load_acquire(to.tail) < call_.n_slots; })) return false;
    }
    int n = 0;
    if (step.before.buffer != 0) room_.src[n++] = address(step.before, begin);
    for (int i = 0; i <= step.n_recv; i++) {
      if (static_cast<uint32_t>(i) == step.local_place && step.local.buffer != 0)
        room_.src[n++] = address(step.local, begin);
      if (i < step.n_recv) room_.src[n++] = slot(recv_end(step, i));
    }
    n = 0;
    if (step.store.buffer != 0) room_.dst[n++] = address(step.store, begin);
    if (step.send >= 0) room_.dst[n++] = slot(end(step.send));
    return true;
  }

  // Buffers as in schedule.h: input, output, scratch.
  __host__ __device__ char* address(const ProgramSlice& slice, uint64_t begin) const {
    constexpr uint8_t kInput = 1, kScratch = 3;
    if (slice.buffer == kScratch)
      return program_.scratch + (static_cast<uint64_t>(stripe_) * program_.n_scratch + slice.chunk) * call_.slot_bytes;
    const uint64_t at = (slice.block * call_.block_elems + stripe_ * stripe_elems_ + begin) * kElemBytes;
    if (slice.buffer == kInput) return static_cast<char*>(const_cast<void*>(call_.inputs[rank_])) + at;
    return static_cast<char*>(call_.outputs[rank_]) + at;
  }

  __host__ __device__ bool step(const ProgramStep& step, uint64_t round) {
    const uint64_t begin = (round * call_.n_chunks + step.size.chunk) * chunk_elems_;
    const uint64_t elems = begin >= my_elems_ ? 0 : min(chunk_elems_, my_elems_ - begin);
    if (place_.thread == 0 && !prepare(step, begin)) room_.failed = 1;
    sync_block();
    if (room_.failed) return false;
    compute(step, elems);
    sync_block();
    if (place_.thread == 0) finish(step);
    return true;
  }

  __host__ __device__ void compute(const ProgramStep& step, uint64_t elems) const {
    const int n_src = (step.before.buffer != 0) + (step.local.buffer != 0) + step.n_recv;
    const int n_dst = (step.store.buffer != 0) + (step.send >= 0);
    if (n_src == 0 || n_dst == 0 || elems == 0) return;
    const uint32_t divisor = step.completes ? call_.divisor : 0;
    const JobView job{room_.src, room_.dst, n_src, n_dst, elems, divisor, call_.op, nullptr, kUnroll};
    if (n_src == 1 && divisor == 0) return run_tiles<true>(job);
    run_tiles<false>(job);
  }

  template <bool kCopies>
  __host__ __device__ void run_tiles(const JobView& job) const {
    const JobRun<T, kUnroll, kCopies> run(job);
    const uint64_t tile_elems = static_cast<uint64_t>(kUnroll) * place_.n_threads * 16 / kElemBytes;
    for (uint64_t t = 0; t * tile_elems < job.elems; t++) run.tile(t, place_.thread, place_.n_threads);
  }

  // After all threads have finished: what they wrote is visible to a peer that sees the count (the block's barrier
  // orders their writes before this thread's release).
  __host__ __device__ void finish(const ProgramStep& step) const {
    for (int i = 0; i < step.n_recv; i++) {
      const LinkEnd& from = recv_end(step, i);
      store_release(from.tail, ++*from.done);
    }
    if (step.send < 0) return;
    const LinkEnd& to = end(step.send);
    store_release(to.head, ++*to.done);
  }

  const ProgramCall& call_;
  const Place place_;
  BlockRoom& room_;
  const uint32_t rank_, stripe_;
  const Program& program_;
  const ProgramLane lane_;
  const uint64_t slot_elems_;
  uint64_t stripe_elems_, my_elems_, rounds_, chunk_elems_;
};

}  // namespace tutti::cuda
