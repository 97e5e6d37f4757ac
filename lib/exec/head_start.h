// The small one-shot all-reduce without a Run's generality, which would cost more than the bytes. Same schedule, same
// messages: it does as many of the steps as can be done at once and leaves the rest, and the words for what is wrong,
// to a Run.
#pragma once

#include "exec/run.h"

namespace tutti {

inline constexpr uint64_t kHeadStartBytes = 4096;

struct SmallSum {
  TagWords tag{};
  const void* input = nullptr;
  void* output = nullptr;
  uint64_t elems = 0;
  uint32_t bytes = 0;  // kHeadStartBytes at most
  ReduceKernel reduce = nullptr;
  uint32_t divisor = 0;  // of an average
};

// `program` is that of one_shot_all_reduce with one chunk. Looks `turns` times for the peers' messages. Returns how
// many steps of its only lane are done.
size_t head_start(Program& program, const SmallSum& sum, int turns);

}  // namespace tutti
