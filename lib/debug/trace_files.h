// This header: where flight recorders keep their files, and whose they are. A file's name says which process has made
// it; a process's start time distinguishes it from a later process with the same number.
//
// All functions from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tutti {

struct ProcessId {
  int pid = 0;
  uint64_t start = 0, pid_namespace = 0;  // the upper half of pid_namespace says on which machine
  bool operator==(const ProcessId&) const = default;
};
ProcessId this_process();

// As in /proc/PID/stat: R, S, D, T and so on; X: it is gone; ?: it cannot be seen from here.
char process_state(const ProcessId& process);

std::string trace_file_name(const ProcessId& process, uint64_t number);
// Nothing if the name is not that of a trace file, or is another user's.
std::optional<ProcessId> maker_of(const std::string& file_name);
// The paths of this user's files, in the order of their names; not those of other machines that share the folder.
std::vector<std::string> trace_files(const std::string& folder);

// Removes the files of processes that are gone: at once if there is nothing to be learnt from them, else after an hour,
// or when there are more than 64. Files of processes that cannot be seen from here are removed after a week, but not
// while a process of this machine uses them.
void sweep_trace_files(const std::string& folder);

}  // namespace tutti
