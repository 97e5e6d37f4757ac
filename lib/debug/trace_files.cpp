#include "debug/trace_files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/socket.h"
#include "debug/trace.h"

namespace tutti {
namespace {

constexpr char kPrefix[] = "tutti-trace.";
constexpr size_t kMostFiles = 64;
constexpr int64_t kHourNs = 3600 * int64_t{1'000'000'000};

// Fields 3 and 22 of the line, state and start time. Both come after the program's name, which may contain anything.
struct Stat {
  char state = 'X';
  uint64_t start = 0;
};
Stat stat_of(const std::string& process) {
  const std::string line = first_line("/proc/" + process + "/stat");
  const size_t name_end = line.rfind(')');
  Stat found;
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return found;
  const char* at = line.c_str() + name_end + 2;
  const char state = *at;
  for (int field = 3; field < 22 && at != nullptr; field++)
    if ((at = strchr(at, ' ')) != nullptr) at++;
  if (at == nullptr) return found;
  return {state, strtoull(at, nullptr, 10)};
}

// With the machine, because the initial namespace has the same number on all machines.
uint64_t own_pid_namespace() {
  struct stat ns {};
  uint32_t machine = 0;
  memcpy(&machine, machine_id().bytes, sizeof machine);
  return stat("/proc/self/ns/pid", &ns) == 0 ? uint64_t{machine} << 32 | (ns.st_ino & 0xffffffff) : 0;
}

struct File {
  std::string path;
  ProcessId maker;
};

// In a folder where all may write, others may give their files and pipes any name, and shorten a file that is mapped.
bool is_own_file(const std::string& path) {
  struct stat file {};
  return lstat(path.c_str(), &file) == 0 && S_ISREG(file.st_mode) && file.st_uid == geteuid();
}

// This user's, of all machines that share the folder.
std::vector<File> all_files(const std::string& folder) {
  std::vector<File> files;
  for (const std::string& name : entries_of(folder))
    if (const auto maker = maker_of(name); maker && is_own_file(folder + "/" + name))
      files.push_back({folder + "/" + name, *maker});
  return files;
}

int64_t last_ns_of(const Trace& trace) {
  const TracedOperation* const last = trace.last();
  return last == nullptr ? 0 : last->finished_ns != 0 ? last->finished_ns : last->started_ns;
}

// A recorder's operations do not count as writing, on tmpfs. But while a process of this machine has the file mapped,
// whatever container it is in, the kernel gives nobody a lease.
bool is_abandoned(const std::string& path) {
  struct stat at {};
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  return file && fstat(file.get(), &at) == 0 && time(nullptr) - at.st_mtime > 7 * 24 * 3600 &&
         (fcntl(file.get(), F_SETLEASE, F_RDLCK) == 0 || errno != EAGAIN);
}

}  // namespace

ProcessId this_process() {
  return {getpid(), stat_of("self").start, own_pid_namespace()};
}

char process_state(const ProcessId& process) {
  static const uint64_t mine = own_pid_namespace();
  if (process.pid_namespace != mine) return '?';
  const Stat found = stat_of(std::to_string(process.pid));
  // Without a free file descriptor, its status cannot be read.
  if (found.start == 0 && (kill(process.pid, 0) == 0 || errno == EPERM)) return '?';
  return found.start == process.start ? found.state : 'X';
}

std::string trace_file_name(const ProcessId& process, uint64_t number) {
  return format("%s%u.%lu.%d.%lu.%lu", kPrefix, getuid(), process.pid_namespace, process.pid, process.start, number);
}

std::optional<ProcessId> maker_of(const std::string& file_name) {
  unsigned uid = 0;
  uint64_t number = 0;
  ProcessId maker;
  if (file_name.compare(0, sizeof kPrefix - 1, kPrefix) != 0 ||
      sscanf(file_name.c_str() + sizeof kPrefix - 1, "%u.%lu.%d.%lu.%lu", &uid, &maker.pid_namespace, &maker.pid,
             &maker.start, &number) != 5 ||
      uid != getuid())
    return {};
  return maker;
}

std::vector<std::string> trace_files(const std::string& folder) {
  static const uint64_t mine = own_pid_namespace();
  std::vector<std::string> paths;
  for (const auto& [path, maker] : all_files(folder))
    if (maker.pid_namespace >> 32 == mine >> 32) paths.push_back(path);
  return paths;
}

void sweep_trace_files(const std::string& folder) {
  std::vector<std::pair<int64_t, std::string>> evidence;  // time of the last operation, path
  for (const auto& [path, maker] : all_files(folder)) {
    const char state = process_state(maker);
    if (state != 'X') {
      if (state == '?' && is_abandoned(path)) unlink(path.c_str());
      continue;
    }
    const auto file = TraceFile::open(path);
    const Trace end = file ? file.value().read_end(TickClock(file.value().header())) : Trace{};
    const int64_t last_ns = last_ns_of(end), ago_ns = end.read_ns - last_ns;  // below 0: from before a reboot
    if (end.is_evidence() && ago_ns >= 0 && ago_ns < kHourNs)
      evidence.emplace_back(last_ns, path);
    else
      unlink(path.c_str());
  }
  std::sort(evidence.rbegin(), evidence.rend());  // the last ones stay
  for (size_t i = kMostFiles; i < evidence.size(); i++) unlink(evidence[i].second.c_str());
}

}  // namespace tutti
