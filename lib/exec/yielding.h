// This header: whether a rank that waits spins or yields.
#pragma once

#include <cstdint>

namespace tutti {

// Always yields where ranks outnumber the CPUs. Elsewhere a rank spins, except for a while after it has found a peer
// that it waits for on its own CPU. One thread at a time.
class Yielding {
 public:
  explicit Yielding(bool always = false) : operations_(always ? kAlways : 0) {}

  bool is_on() const { return operations_ > 0; }
  // Whether the next operation yields. Each counts, so that no rank keeps yielding to a peer that the kernel has moved.
  bool begin_operation() {
    if (operations_ == 0) return false;
    if (operations_ != kAlways) operations_--;
    return true;
  }
  // A peer that this rank waits for is on its CPU.
  void start() {
    if (operations_ != kAlways) operations_ = kOperations;
  }
  // Lets others run. Ends the yielding, unless ranks outnumber the CPUs, if the others took a time slice.
  void give_way();

 private:
  static constexpr uint32_t kAlways = UINT32_MAX;
  static constexpr uint32_t kOperations = 1 << 14;  // 15 ms or more; finding the peer again takes 0.1 ms

  uint32_t operations_;  // how many more will yield
};

}  // namespace tutti
