#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/at_fork.h"
#include "base/env.h"
#include "base/file.h"
#include "base/limits.h"

namespace tutti {
namespace {

constexpr const char* kLevelNames[] = {"none", "error", "warn", "info", "trace"};
thread_local int t_rank = -1;
// When the library is loaded: later the number of a closed stderr may belong to anything that the program has opened.
const bool g_has_stderr = ::fcntl(STDERR_FILENO, F_GETFD) >= 0;

struct Sink {
  LogLevel level = LogLevel::kWarn;
  int fd = g_has_stderr ? STDERR_FILENO : -1;
  Sink() {
    const std::string wanted = env_string("TUTTI_LOG");
    for (int i = 0; i <= static_cast<int>(LogLevel::kTrace); i++)
      if (wanted == kLevelNames[i]) level = static_cast<LogLevel>(i);
    const std::string path = env_string("TUTTI_LOG_FILE");
    if (path.empty()) return;
    Fd file = open_to_write(path, O_APPEND, 0644);
    if (file)
      fd = file.release();
    else if (g_has_stderr)
      fprintf(stderr, "tutti: TUTTI_LOG_FILE=%s cannot be opened (%s): logging to stderr\n", path.c_str(),
              strerror(errno));
  }
};

MadeOnce<Sink> g_sink;

const Sink& sink() {
  return g_sink.get([] { return Sink(); });
}

}  // namespace

bool log_enabled(LogLevel level) {
  return level <= sink().level;
}

void log_set_thread_rank(int rank) {
  t_rank = rank;
}

void log(LogLevel level, const char* fmt, ...) {
  if (!log_enabled(level)) return;
  char line[2048];
  char rank[24] = "";
  if (t_rank >= 0) snprintf(rank, sizeof rank, " rank %d", t_rank);
  int used = snprintf(line, sizeof line, "tutti[%d]%s %s: ", getpid(), rank, kLevelNames[static_cast<int>(level)]);
  va_list args;
  va_start(args, fmt);
  used += vsnprintf(line + used, sizeof line - static_cast<size_t>(used), fmt, args);
  va_end(args);
  if (used > static_cast<int>(sizeof line) - 2) used = sizeof line - 2;
  line[used++] = '\n';
  // A full disk or a closed stderr must not stop the job: the line is dropped.
  const NoWriteSignal quiet;
  [[maybe_unused]] const ssize_t written = ::write(sink().fd, line, static_cast<size_t>(used));
}

}  // namespace tutti
