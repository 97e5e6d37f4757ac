// Forks processes and supervises them until they have ended.
#pragma once

#include <functional>

namespace tutti::perf {

struct SpawnPlan {
  const char* tool;
  int procs;
  int ranks_per_proc;  // process i has ranks [i * ranks_per_proc, (i + 1) * ranks_per_proc)
  int grace_seconds;   // after the first failure, until the others must have ended
};

// Blocks the signals that spawn() waits for. Must be called before any thread starts, as threads inherit the mask.
void block_launcher_signals();

// Runs child(i) in n forked processes; its result is the process's exit status. Runs `meanwhile` here once all are
// forked, so that it may start threads (a process with threads should not fork). Returns the worst exit status, or 128
// + the signal that ended everything (SIGINT, SIGTERM and SIGHUP are passed on to the children, except those that this
// program was started to ignore). If a child failed for other reasons than wrong data, stderr says which ranks ended
// how, in the order of their ends.
int spawn(const SpawnPlan& plan, const std::function<int(int)>& child, const std::function<void()>& meanwhile);

}  // namespace tutti::perf
