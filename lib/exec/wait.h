// Waiting for peers: spin where ranks have CPUs of their own, yield where they share them, then sleep.
#pragma once

#include <vector>

#include "exec/run.h"

namespace tutti {

// How often to look before asking what else there is to do: about 2 us.
inline constexpr int kSpins = 100;
// And how often where ranks share a CPU, each look after all the others had their turn.
inline constexpr int kYields = 16;

// Turns from one look at the links' health, which is also what moves bytes over sockets, to the next.
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
  // A sentence for people on whom this rank waits for, and why; empty where nothing is known.
  virtual std::string why_waiting() { return {}; }
};

// What the caller has to do anyway, while nothing has come.
class Meanwhile {
 public:
  virtual ~Meanwhile() = default;
  virtual bool step() = 0;  // some microseconds of it; false if nothing is left
};

// Runs to the end. The error of a link is the link's own; the caller may know a deeper cause.
Result<void> drive(Run& run, WaitContext& context, const WaitPolicy& policy, Meanwhile* meanwhile = nullptr);

}  // namespace tutti
