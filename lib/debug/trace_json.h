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

// Writes to the file that `pattern`, from TUTTI_TRACE_FILE, stands for, unless it is empty. Failures are logged.
void write_trace_file(const Recorder& recorder, const std::string& pattern);

}  // namespace tutti
