// This header: where flight recorders keep their files, and whose they are. A file's name says which process has made
// it; a process is told from a later one with its number by when it was started.
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
  uint64_t start = 0, pid_namespace = 0;  // the upper half of the latter says on which machine
  bool operator==(const ProcessId&) const = default;
};
ProcessId this_process();

// As in /proc/PID/stat: R, S, D, T and so on; X: there is none any more; ?: it cannot be seen from here.
char process_state(const ProcessId& process);

std::string trace_file_name(const ProcessId& process, uint64_t number);
// None if the name is not of this kind, or another user's.
std::optional<ProcessId> maker_of(const std::string& file_name);
// The paths of this user's files, in the order of their names; not those of other machines that share the folder.
std::vector<std::string> trace_files(const std::string& folder);

// Removes what processes have left that are gone: at once if there is nothing to be learnt from it, else after an hour,
// or when there are more than 64 files. What cannot be judged from here goes after a week.
void sweep_trace_files(const std::string& folder);

}  // namespace tutti
