// Which of two ways is faster, found out while working: each size tries both in turns, takes the one with the shorter
// best time, and looks again from time to time. All ranks try the same way at the same time, because they count the
// same operations; what they take then is each rank's own affair, so only ways that need no agreement qualify. One
// thread.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace tutti {

class Trial {
 public:
  // Three of each: one is easily disturbed. Looking again costs 3 of 1000 operations' difference.
  static constexpr uint32_t kTries = 6, kPeriod = 1000;

  // 0 or 1, for the next operation of so many bytes; record() follows.
  int choose(uint64_t bytes) {
    Size& size = sizes_[static_cast<size_t>(std::bit_width(bytes))];
    const uint32_t turn = size.uses++ % kPeriod;
    if (turn == 0) size.best_ns = {INT64_MAX, INT64_MAX};
    if (turn < kTries) return turn % 2;
    return size.best_ns[1] < size.best_ns[0];
  }
  void record(uint64_t bytes, int way, int64_t ns) {
    int64_t& best = sizes_[static_cast<size_t>(std::bit_width(bytes))].best_ns[static_cast<size_t>(way)];
    if (ns < best) best = ns;
  }

 private:
  struct Size {
    uint32_t uses = 0;
    std::array<int64_t, 2> best_ns{};
  };
  std::array<Size, 65> sizes_;
};

}  // namespace tutti
