// This header: the steps of a schedule, and a list that stores a million similar steps in the memory of one.
// Plain values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <vector>

namespace tutti {

enum class Buffer : uint8_t { kNone = 0, kInput = 1, kOutput = 2, kScratch = 3 };

// A buffer is an array of blocks, not always of one size: one in all for all-reduce, broadcast and reduce, one per rank
// for what gathers or scatters. Every block is cut into n_chunks chunks: chunk c of block b has the index b * n_chunks
// + c, blocks counted within that buffer. How many elements a chunk has is the executor's business.
struct Slice {
  Buffer buffer = Buffer::kNone;
  uint32_t chunk = 0;
  bool operator==(const Slice&) const = default;
};

// A Slice with its index split into block and chunk.
struct PlacedSlice {
  Buffer buffer = Buffer::kNone;
  uint32_t block = 0;
  uint32_t chunk = 0;  // within the block; in scratch: the index
  bool operator==(const PlacedSlice&) const = default;
};
// `n_chunks` is the schedule's; a barrier has none.
constexpr PlacedSlice take_apart(const Slice& slice, uint32_t n_chunks) {
  if (slice.buffer == Buffer::kScratch || n_chunks == 0) return {slice.buffer, 0, slice.chunk};
  return {slice.buffer, slice.chunk / n_chunks, slice.chunk % n_chunks};
}

// NCCL's fused primitive, in this order, all parts optional:
//   value = (slice `before`) + (message received from rank `recv`) + (slice `local`);   "+" is the reduction
//   keep value in slice `store`;   send value to rank `send`
// At most two of the three terms are present, so that every reduction rounds once; a copy's only source is `local` or
// the message. A step without any source or slice only signals that it happened (a barrier's message).
// With recv == kEveryone it takes one message from every other rank instead, and the value is their sum in rank order,
// with `local` at this rank's place: a whole reduction in one pass.
inline constexpr int32_t kEveryone = -2;
struct Step {
  int32_t recv = -1;
  int32_t send = -1;
  // Which chunk's data the value is, in the collective's own numbering: chunk c of logical block b is b * n_chunks + c.
  // It decides how many elements the value has. Logical blocks:
  //   all-reduce, broadcast, reduce                   one, 0
  //   all-gather, reduce-scatter, gather, scatter     b: rank b's block
  //   all-to-all                                      s * n_ranks + d: from rank s to rank d
  //   send and receive                                this rank's input blocks, then its output blocks
  // Each rank numbers the last kind separately; all others mean the same on all ranks.
  uint32_t chunk = 0;
  Slice before;
  Slice local;
  Slice store;
  // This reduction completes the sum over all ranks: the executor divides here for an average. If the collective
  // reduces, every value that ends up in an output has passed exactly one such step.
  bool completes = false;
  bool operator==(const Step&) const = default;
};

// How chunks move from one repetition to the next: by `stride`, wrapping around within each group of `modulus` chunks.
struct Walk {
  uint32_t stride = 0, modulus = 1;
  bool operator==(const Walk&) const = default;
  uint32_t move(uint32_t chunk, uint32_t times) const {
    const uint32_t in_group = chunk % modulus;
    return chunk - in_group + static_cast<uint32_t>((in_group + uint64_t{times} * stride) % modulus);
  }
  // Moves the step's chunk and its slices, which are of that chunk, except those in scratch.
  Step move(Step step, uint32_t times) const {
    step.chunk = move(step.chunk, times);
    for (Slice* slice : {&step.before, &step.local, &step.store})
      if (slice->buffer == Buffer::kInput || slice->buffer == Buffer::kOutput) slice->chunk = move(slice->chunk, times);
    return step;
  }
};

// A compressed list of steps: a repeated sequence is stored once, and a step is computed when it is asked for. So
// access returns a value, and steps in the list cannot be changed.
class Steps {
 public:
  // A sequence of patterns (the steps of the first repetition) that is done `times` times.
  struct Run {
    uint32_t first_pattern = 0, n_patterns = 0, times = 1;
    Walk walk;
    uint32_t begin = 0;  // number of steps before this run
    bool operator==(const Run&) const = default;
  };

  class const_iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Step;
    using difference_type = std::ptrdiff_t;
    using pointer = void;
    using reference = Step;

    const_iterator() = default;
    Step operator*() const {
      const Run& run = steps_->runs_[run_];
      const Step& pattern = steps_->patterns_[pattern_];
      return run.times == 1 ? pattern : run.walk.move(pattern, time_);
    }
    const_iterator& operator++() {
      const Run& run = steps_->runs_[run_];
      if (++pattern_ < run.first_pattern + run.n_patterns) return *this;
      if (++time_ < run.times) {
        pattern_ = run.first_pattern;
      } else {
        time_ = 0;
        run_++;
      }
      return *this;
    }
    bool operator==(const const_iterator& other) const {
      return run_ == other.run_ && time_ == other.time_ && pattern_ == other.pattern_;
    }
    uint32_t pattern() const { return pattern_; }  // index into patterns()
    uint32_t index() const;

   private:
    friend class Steps;
    const_iterator(const Steps* steps, uint32_t run, uint32_t time, uint32_t pattern)
        : steps_(steps), run_(run), time_(time), pattern_(pattern) {}
    const Steps* steps_ = nullptr;
    uint32_t run_ = 0, time_ = 0, pattern_ = 0;
  };

  Steps() = default;
  Steps(std::initializer_list<Step> steps);  // NOLINT: a list is one
  explicit Steps(std::span<const Step> steps);

  void push_back(const Step& step);
  // Slices in a pattern's input or output must be of its own chunk.
  void repeat(std::span<const Step> patterns, uint32_t times, Walk walk);
  void repeat(std::initializer_list<Step> patterns, uint32_t times, Walk walk) {
    repeat(std::span(patterns.begin(), patterns.size()), times, walk);
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const_iterator at(size_t index) const;
  Step operator[](size_t index) const { return *at(index); }
  const_iterator begin() const { return {this, 0, 0, 0}; }
  const_iterator end() const {
    return {this, static_cast<uint32_t>(runs_.size()), 0, static_cast<uint32_t>(patterns_.size())};
  }
  // Every peer and every kind of step occurs in one of these.
  std::span<const Step> patterns() const { return patterns_; }
  std::span<const Run> runs() const { return runs_; }
  // The first step made from the pattern with this index.
  const_iterator first_of(uint32_t pattern) const;

 private:
  std::vector<Step> patterns_;
  std::vector<Run> runs_;
  uint32_t size_ = 0;
};

// A message that a lane only stores in the output, so that its sender may write it there itself once the lane has
// reached step `from`, past the sender's previous such message. `ahead`: the sender's other messages from `from` on.
struct Placeable {
  uint32_t step = 0, from = 0, ahead = 0;
};
std::vector<Placeable> placeable_messages(std::span<const Step> steps);

}  // namespace tutti
