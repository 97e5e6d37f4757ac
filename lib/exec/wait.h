// Waiting for peers: spin where ranks have CPUs of their own, yield where they share them, then sleep.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "exec/run.h"

namespace tutti {

// How often to look before asking what else there is to do: about 2 us.
inline constexpr int kSpins = 100;
// And how often where ranks share a CPU, each look after all the others had their turn.
inline constexpr int kYields = 16;

// Lets ranks that share this one's CPU run. Beside a stranger who never waits that costs a time slice, so for a while
// after one that took so long ranks are to sleep instead: a message wakes them at once. If the next yields cost as
// much, for longer.
class Yielding {
 public:
  bool is_dear() const { return rest_ns_ > 0 && now_ns() < dear_until_ns_; }
  void yield() {
    const int64_t begin_ns = now_ns();
    sched_yield();
    const int64_t end_ns = now_ns();
    if (end_ns - begin_ns > kDearNs) [[unlikely]]
      rest(end_ns);
  }

 private:
  // 16 ranks that all have their turn take 10 us; the shortest slices are of 700 us.
  static constexpr int64_t kDearNs = 500'000, kLeastRestNs = 5'000'000, kMostRestNs = 200'000'000;
  void rest(int64_t now_ns) {
    const bool again = now_ns - dear_until_ns_ < rest_ns_;
    rest_ns_ = again ? std::min(2 * rest_ns_, kMostRestNs) : kLeastRestNs;
    dear_until_ns_ = now_ns + rest_ns_;
  }

  int64_t rest_ns_ = 0, dear_until_ns_ = 0;
};

struct WaitPolicy {
  // Ranks outnumber the CPUs: spinning would keep the awaited one from running.
  bool oversubscribed = false;
  double op_timeout_seconds = 1800;
  Yielding yielding;
};

// What ends a wait from outside, and whom to listen to meanwhile.
class WaitContext {
 public:
  virtual ~WaitContext() = default;
  virtual bool interrupted() = 0;  // one load: asked in every turn
  virtual Error interruption() = 0;
  virtual int wake_fd() = 0;  // readable once interrupted
  // Every link on which some peer could send this rank something.
  virtual const std::vector<Link*>& incoming() = 0;
  // Now and then while idle: lets in peers that want to connect for a later operation.
  virtual void housekeeping() = 0;
  // Likewise, after so long without progress: an error if another rank has called something else, for then it may be
  // that everybody waits and nobody sends.
  virtual Result<void> check_stalled(int64_t /*idle_ns*/) { return {}; }
};

// Runs to the end. The error of a link is the link's own; the caller may know a deeper cause.
Result<void> drive(Run& run, WaitContext& context, WaitPolicy& policy);

}  // namespace tutti
