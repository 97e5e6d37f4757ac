// The kernel's limits on a process: descriptors and the size of files. Any thread.
#pragma once

#include <signal.h>

#include <cstddef>
#include <string>

#include "base/result.h"

namespace tutti {

// The remedy, in parentheses, if a call failed with this errno because of such a limit; else "".
std::string limit_remedy(int sys_errno);

// Whether a call failed with this errno because there is no descriptor, no memory, or no port for another connection;
// not for bind(2), where EADDRNOTAVAIL means that this host does not have the address.
bool lacks_resources(int sys_errno);

// How many descriptors this process has open; 0 if unknown.
size_t open_descriptors();
// An error if a process with `open` descriptors may not open `more`. `who` needs them: "the root".
Result<void> check_descriptors(size_t open, size_t more, const std::string& who);

// While this exists, a write beyond the process's file size limit (ulimit -f), or to a pipe without a reader, fails
// with an error for this thread instead of raising a signal.
class NoWriteSignal {
 public:
  NoWriteSignal();
  ~NoWriteSignal();
  NoWriteSignal(const NoWriteSignal&) = delete;
  NoWriteSignal& operator=(const NoWriteSignal&) = delete;

 private:
  sigset_t before_, ours_;  // ours: the signals that were not pending before
};

}  // namespace tutti
