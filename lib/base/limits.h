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

// While this lives, a file beyond the limit of this process (ulimit -f) is an error to this thread and no SIGXFSZ.
class NoSizeSignal {
 public:
  NoSizeSignal();
  ~NoSizeSignal();
  NoSizeSignal(const NoSizeSignal&) = delete;
  NoSizeSignal& operator=(const NoSizeSignal&) = delete;

 private:
  sigset_t before_;
  bool was_pending_;
};

}  // namespace tutti
