// The stream on whose thread the hook averages the buckets: one after the other, in the same order on all ranks,
// whatever the order of marks.
//
// Threads: running_, reduced_bytes_ and the contents of buckets belong to the stream's thread. Other threads touch
// these only while nothing is queued, launch_full with the averager's mutex held.
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
  Status prepare();  // before the first step, and after buckets were rebuilt

  void begin_step() { launched_ = running_ = reduced_bytes_ = 0; }
  void launch_full(const Marks& marks);  // the next buckets in order, up to the first that is not full
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
  size_t launched_ = 0;  // number of buckets launched in this step
  size_t running_ = 0;
  size_t reduced_bytes_ = 0;
};

}  // namespace tutti::ddp
