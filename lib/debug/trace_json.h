// This header: a trace as JSON, in the shape of PyTorch's flight recorder ("entries", "pg_config", "pg_status"), with
// Tutti's own additions under "tutti". From any thread; may block on a file system.
#pragma once

#include <string>

#include "base/result.h"
#include "debug/trace.h"

namespace tutti {

std::string to_json(const Trace& trace);

// `pattern` with %r, %p, %h and %g replaced by rank, process, host and group.
std::string trace_path(const std::string& pattern, const Trace& trace);

// Writes to the file that `pattern` stands for, and returns its path.
Result<std::string> write_trace(const Trace& trace, const std::string& pattern);

// From now on SIGTERM writes the traces of all communicators of this process to their files (Recorder::trace_file), and
// then does what it did before. Only the first call counts. The handler only wakes a thread, which writes. Only on
// request: a library takes over no signals unasked.
Result<void> write_traces_on_sigterm();

// Writes to the file that `pattern`, from TUTTI_TRACE_FILE, stands for, unless it is empty. Failures are logged.
void write_trace_file(const Recorder& recorder, const std::string& pattern);

}  // namespace tutti
