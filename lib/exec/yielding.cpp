#include "exec/yielding.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace tutti {
namespace {

// Measured on a 2-core virtual machine: a cache line goes from core to core in 0.17 us, a yield costs 1.6 us, waking an
// idle virtual CPU 75 us; but a yield beside a process that never waits costs a time slice, 4 ms. So ranks that have
// CPUs of their own spin for longer than such a slice, because a peer that shares its CPU with a foreign process runs
// again by then; ranks that share CPUs yield until sleeping is cheap in comparison.
constexpr int64_t kAwakeNs = 8'000'000;
constexpr int64_t kAwakeSharingNs = 2'000'000;
constexpr int64_t kLongestTurnNs = 500'000;  // that a peer on this CPU runs before it waits itself
// Several peers took up to 1.5 ms in turn (16 ranks on 2 CPUs, 1 MiB), a foreign process 2 to 4 ms.
constexpr int64_t kShortestSliceNs = 1'500'000;
// Some 12 slices. Beside one foreign process on 2 CPUs there were up to five, one right after the other, until the
// kernel moved the ranks to the other CPU.
constexpr int64_t kMostLostNs = 50'000'000;
// An operation may lose this much all the time. Foreign processes that the kernel treats as another group (a session
// or container of its own) take 2/3 of the time, but between two of their slices there are thousands of operations.
constexpr int64_t kLostPerOperationNs = 400'000;
constexpr uint32_t kMostNaps = 1 << 14;  // a second or more of them: finding out again costs 1 % of it

}  // namespace

int64_t Yielding::awake_ns(bool has_stranger) const {
  if (limited_ || has_stranger) return kLeastAwakeNs;
  return is_on() || crowded_ ? kAwakeSharingNs : kAwakeNs;
}

// Reading the clock costs 1/50 of a yield to another process.
void Yielding::give_way() {
  const int64_t begun_ns = now_ns();
  sched_yield();
  took(now_ns() - begun_ns);
}

void Yielding::took(int64_t ns) {
  if (operations_ != kAlways && ns > kLongestTurnNs) operations_ = 0;
  if ((operations_ != kAlways && !crowded_) || ns < kShortestSliceNs) return;
  lost_ns_ = std::max<int64_t>(0, lost_ns_ - std::exchange(begun_, 0) * kLostPerOperationNs);
  if (lost_ns_ == 0) next_naps_ = kFewestNaps;
  lost_ns_ += ns;
  if (lost_ns_ < kMostLostNs) return;
  lost_ns_ = kMostLostNs - kShortestSliceNs;  // after these naps one slice is enough
  naps_ = next_naps_;
  next_naps_ = std::min(8 * next_naps_, kMostNaps);
}

// The kernel adds a thread's timer slack, 50 us by default.
void nap() {
  const timespec time{0, 10'000};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
}

}  // namespace tutti
