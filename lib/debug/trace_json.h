// This header: a trace as JSON, in the shape of PyTorch's flight recorder ("entries", "pg_config", "pg_status"), with
// what only Tutti knows under "tutti". From any thread; waits for a file system.
#pragma once

#include <string>

#include "base/result.h"
#include "debug/trace.h"

namespace tutti {

std::string to_json(const Trace& trace);

// `pattern`, with what %r, %p, %h and %g stand for.
std::string trace_path(const std::string& pattern, const Trace& trace);

// To the file of that name, which it returns.
Result<std::string> write_trace(const Trace& trace, const std::string& pattern);

// To the file that TUTTI_TRACE_FILE is a pattern of; nowhere if that is empty. What goes wrong is logged.
void write_trace_file(const Recorder& recorder, const std::string& pattern);

}  // namespace tutti
