// This header: traces of a process that is asked to end. Only on request: a library takes over no signals unasked.
#pragma once

#include "base/result.h"

namespace tutti {

// From now on SIGTERM writes the traces of all communicators of this process to their files (Recorder::trace_file), and
// then does what it did before. Only the first call counts. The handler only wakes a thread, which writes.
Result<void> write_traces_on_sigterm();

}  // namespace tutti
