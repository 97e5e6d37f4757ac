// What the kernel allows a process: descriptors, and the size of files. Any thread.
#pragma once

#include <signal.h>

#include <cstddef>
#include <string>

#include "base/result.h"

namespace tutti {

// What to do where a call failed with this errno because of such a limit, in parentheses; "" for all others.
std::string limit_remedy(int sys_errno);

// How many descriptors it has open; 0 if that cannot be told.
size_t open_descriptors();
// An error if a process that has `open` of them may not have so many more. `who` needs them: "the root".
Result<void> check_descriptors(size_t open, size_t more, const std::string& who);

// While this lives, a file beyond the limit of this process (ulimit -f), or a pipe that nobody reads any more, is an
// error to this thread and no signal.
class NoWriteSignal {
 public:
  NoWriteSignal();
  ~NoWriteSignal();
  NoWriteSignal(const NoWriteSignal&) = delete;
  NoWriteSignal& operator=(const NoWriteSignal&) = delete;

 private:
  sigset_t before_, ours_;  // ours: those that did not wait for this thread already
};

}  // namespace tutti
