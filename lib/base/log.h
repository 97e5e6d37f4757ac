// Log lines on stderr (or TUTTI_LOG_FILE; nowhere if stderr was closed when the library was loaded), filtered by
// TUTTI_LOG = none|error|warn|info|trace (default warn). A line is written with one write(2), so lines of several
// processes do not mix. Safe from any thread.
#pragma once

namespace tutti {

enum class LogLevel : int { kNone = 0, kError = 1, kWarn = 2, kInfo = 3, kTrace = 4 };

bool log_enabled(LogLevel level);
void log(LogLevel level, const char* fmt, ...) __attribute__((format(printf, 2, 3)));
// The rank that this thread works for, shown in each line; -1 for none.
void log_set_thread_rank(int rank);

}  // namespace tutti
