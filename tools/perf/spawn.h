// Forks processes and supervises them until they have ended.
#pragma once

#include <functional>

namespace tutti::perf {

struct SpawnPlan {
  const char* tool;
  int procs;
  int ranks_per_proc;  // process i has ranks [i * ranks_per_proc, (i + 1) * ranks_per_proc)
  int grace_seconds;   // after the first failure, for the others to end by themselves
};

// Blocks the signals that spawn() waits for. Call it before anything starts a thread, which inherits this.
void block_launcher_signals();

// Runs child(i) in n forked processes and `meanwhile` here once all are forked (so threads may start there: a process
// with threads should not fork); what it returns is the process's exit status. Returns the worst exit status, or 128 +
// the signal that ended all of this (SIGINT, SIGTERM and SIGHUP are passed on to the children, but for those that this
// program was started to ignore). Says on stderr which ranks ended how, in the order of their ends, if one failed
// otherwise than by wrong data.
int spawn(const SpawnPlan& plan, const std::function<int(int)>& child, const std::function<void()>& meanwhile);

}  // namespace tutti::perf
