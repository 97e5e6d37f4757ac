// The stream on whose thread the hook averages one bucket after the other: in the order of buckets on all ranks,
// whatever the order of marks.
//
// Threads: the stream's has running_ and reduced_bytes_, and what is in a bucket's memory. The others touch that only
// while nothing is queued, launch_full with the averager's mutex.
#pragma once

#include <memory>

#include "checks.h"
#include "hook.h"
#include "marks.h"

namespace tutti::ddp {

class HookStream {
 public:
  HookStream(const Replica& replica, const Buckets& buckets, Checks& checks, Outcome& outcome);
  ~HookStream();
  Status prepare();  // before the first step, and when buckets were built anew

  void begin_step() { launched_ = running_ = reduced_bytes_ = 0; }
  void launch_full(const Marks& marks);  // the next buckets, as far as they are full
  Status synchronize() const { return library(tuttiStreamSynchronize(stream_)); }
  size_t reduced_bytes() const { return reduced_bytes_; }

 private:
  void run_next();

  const Replica& replica_;
  const Buckets& buckets_;
  Checks& checks_;
  Outcome& outcome_;
  const std::unique_ptr<Hook> hook_;
  tuttiStream_t stream_ = nullptr;
  size_t launched_ = 0;  // buckets of the step
  size_t running_ = 0;
  size_t reduced_bytes_ = 0;
};

}  // namespace tutti::ddp
