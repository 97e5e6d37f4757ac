// How the elements of a block lie over its chunks. Without state: any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tutti {

// What a message may hold.
struct MessageSizes {
  uint32_t slot_bytes = 0;  // at most; a multiple of 64
  // What the network carries at a time, a multiple of 64: of what goes a little beyond a multiple of it, the end costs
  // as much as all of that. 0: any size is as good as another.
  uint32_t segment_bytes = 0;
};

// When the schedule runs for several rounds, chunk c of round r starts at element (r * n_chunks + c) * chunk_elems of
// the block. Chunks beyond the end are empty, and their messages too.
class ChunkLayout {
 public:
  // Some of a block's elements.
  struct Part {
    uint64_t begin, elems;
  };

  ChunkLayout(size_t elem_bytes, uint32_t n_chunks, MessageSizes sizes)
      : n_chunks_(n_chunks),
        slot_elems_(sizes.slot_bytes / elem_bytes),
        segment_elems_(sizes.segment_bytes / elem_bytes),
        line_elems_(64 / elem_bytes) {}  // chunks start on cache lines of the block

  uint64_t rounds(uint64_t block_elems) const {
    const uint64_t per_round = n_chunks_ * slot_elems_;
    return block_elems <= per_round ? 1 : (block_elems - 1) / per_round + 1;
  }

  Part part(uint64_t block_elems, uint64_t rounds, uint64_t round, uint64_t chunk) const {
    const uint64_t chunk_elems = this->chunk_elems(block_elems, rounds * n_chunks_);
    const uint64_t at = round * n_chunks_ + chunk, begin = std::min(block_elems, at * chunk_elems);
    const uint64_t left = block_elems - begin;
    return {begin, at + 1 == rounds * n_chunks_ ? left : std::min(chunk_elems, left)};
  }

 private:
  // Chunks that go a little beyond whole segments are cut, and the last one takes what that leaves: 256 KiB over four
  // chunks, all-reduced over TCP by 4 ranks, take 176 us instead of 230.
  uint64_t chunk_elems(uint64_t block_elems, uint64_t n_chunks) const {
    if (block_elems == 0) return 0;
    const uint64_t even = (block_elems - 1) / n_chunks + 1;
    const uint64_t elems = std::min(slot_elems_, (even + line_elems_ - 1) / line_elems_ * line_elems_);
    if (segment_elems_ == 0 || elems < segment_elems_) return elems;
    const uint64_t cut = elems % segment_elems_, left = cut * (n_chunks - 1);
    return left <= elems / kMostLeft && elems + left <= slot_elems_ ? elems - cut : elems;
  }

  static constexpr uint64_t kMostLeft = 16;  // of a chunk's size, for the last one: the others wait for that
  uint64_t n_chunks_, slot_elems_, segment_elems_, line_elems_;
};

}  // namespace tutti
