// This header: whether a rank that waits spins, yields or naps, and for how long.
#pragma once

#include <cstdint>

namespace tutti {

// Yields or naps where ranks outnumber the CPUs. Elsewhere a rank spins, except for a while after it has found a peer
// that it waits for on its own CPU. One thread at a time.
class Yielding {
 public:
  // Where a foreign process takes turns with this rank, it sleeps soon: a thread that slept is woken at once, even in
  // the middle of the other's slice, but ranks that each spin away a slice while the other has none meet only by luck.
  // It must be longer than a wake-up takes: else each rank sleeps again before the other one's answer arrives.
  static constexpr int64_t kLeastAwakeNs = 100'000;

  // `limited`: processes here that have used up so much CPU time are stopped for a while, whether they worked or
  // waited. 2 ranks with the time of one CPU took 8.6 ms instead of 12.1 for steps of 2 or 6 ms, in turns.
  // `crowded`: ranks of a larger group outnumber the CPUs, if these do not. Small operations yield then, as
  // they would there; others spin, because two ranks that run together get on with what is in their caches.
  explicit Yielding(bool always = false, bool limited = false, bool crowded = false)
      : limited_(limited), crowded_(crowded), operations_(always ? kAlways : 0) {}

  bool is_on() const { return operations_ > 0; }
  // Whether the next operation yields. Each counts, so that no rank keeps yielding to a peer that the kernel has moved.
  bool begin_operation() {
    if (!is_on() && !crowded_) return false;
    if (is_on() && operations_ != kAlways) operations_--;
    if (naps_ > 0) {
      naps_--;
      return false;
    }
    begun_++;
    return true;
  }
  // A peer that this rank waits for is on its CPU.
  void start() {
    if (operations_ != kAlways) operations_ = kOperations;
  }
  // How long a rank that waits stays awake. A stranger: another process that keeps taking this thread's CPU.
  int64_t awake_ns(bool has_stranger) const;
  // Lets others run.
  void give_way();
  // A yield took this long. If others took a time slice, yielding ends; where ranks (also others) outnumber the CPUs,
  // only if each operation or two costs such a slice, and for a number of operations that grows each time this turns
  // out to be so still: peers that compute for long between their operations look like foreign processes, until they
  // stop.
  void took(int64_t ns);
  // Whether this rank naps instead of yielding.
  bool naps() const { return naps_ > 0; }

 private:
  static constexpr uint32_t kAlways = UINT32_MAX;
  static constexpr uint32_t kOperations = 1 << 14;  // 15 ms or more; finding the peer again takes 0.1 ms
  static constexpr uint32_t kFewestNaps = 1 << 9;   // 40 ms or more of them

  bool limited_, crowded_;
  uint32_t operations_;  // how many more will yield
  uint32_t begun_ = 0;   // how many have yielded since others last took a slice
  int64_t lost_ns_ = 0;  // to such slices, less what operations may lose
  uint32_t naps_ = 0;    // how many more operations will nap
  uint32_t next_naps_ = kFewestNaps;
};

// Leaves the CPU for some 60 us.
void nap();

}  // namespace tutti
