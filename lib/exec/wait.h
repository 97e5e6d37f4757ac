// Waiting for peers: spin where ranks have CPUs of their own, yield or nap where they share them, then sleep.
#pragma once

#include <string>
#include <vector>

#include "exec/run.h"

namespace tutti {

// Looks before the first check for anything else to do: about 2 us.
inline constexpr int kSpins = 100;
// The same where ranks share a CPU: all others have had their turn before each look.
inline constexpr int kYields = 16;

// Turns between two polls of the links, which check their health and move bytes over sockets.
inline constexpr int kTurnsPerPoll = 4;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct WaitPolicy {
  Yielding& yielding;  // the communicator's
  double op_timeout_seconds = 1800;
};

// What can end a wait from outside, and what to attend to meanwhile.
class WaitContext {
 public:
  virtual ~WaitContext() = default;
  virtual bool interrupted() = 0;  // one load: called in every turn
  virtual Error interruption() = 0;
  virtual int wake_fd() = 0;  // readable once interrupted
  // Every link on which some peer could send this rank something.
  virtual const std::vector<Link*>& incoming() = 0;
  // How many links the operation still lacks, which housekeeping() makes.
  virtual size_t missing_links() = 0;
  // Now and then while idle, and in every turn while links are missing: lets in peers that want to connect.
  virtual Result<void> housekeeping() = 0;
  // Likewise, after this long without progress: an error if another rank has called something else, because then all
  // ranks may be waiting and none sending.
  virtual Result<void> check_stalled(int64_t /*idle_ns*/) { return {}; }
  // A sentence for people: which rank this rank waits for, and why; empty if that is not known.
  virtual std::string why_waiting() { return {}; }
};

// Other work of the caller, done while no message arrives.
class Meanwhile {
 public:
  virtual ~Meanwhile() = default;
  virtual bool step() = 0;  // a few microseconds of it; false if nothing is left
};

// Runs to the end. A wait without progress is logged after 3 s, and again after twice as long each time; after the
// limit it is an error: both say whom it waits for, and why. A link's error is returned as it is; the caller may know a
// deeper cause.
Result<void> drive(Run& run, WaitContext& context, const WaitPolicy& policy, Meanwhile* meanwhile = nullptr);

}  // namespace tutti
