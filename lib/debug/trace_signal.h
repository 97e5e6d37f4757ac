// This header: traces of a process that is asked to end. Only on request: a library takes over no signals unasked.
#pragma once

#include <string>

#include "base/result.h"

namespace tutti {

// From now on SIGTERM writes the traces of all communicators of this process to the files that `pattern` stands for,
// and then does what it did before. Only the first call counts. The handler only wakes a thread, which writes.
Result<void> write_traces_on_sigterm(const std::string& pattern);

}  // namespace tutti
