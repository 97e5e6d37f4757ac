#include "base/limits.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>

#include "base/file.h"

namespace tutti {
namespace {

uint64_t limit_of(__rlimit_resource resource) {
  rlimit limit{};
  getrlimit(resource, &limit);
  return limit.rlim_cur;
}

}  // namespace

std::string limit_remedy(int sys_errno) {
  if (sys_errno == EMFILE)
    return format(" (all %lu descriptors that this process may have are in use: raise ulimit -n)",
                  limit_of(RLIMIT_NOFILE));
  if (sys_errno == ENFILE) return " (all descriptors of this machine are in use: raise fs.file-max)";
  if (sys_errno == EFBIG && limit_of(RLIMIT_FSIZE) != RLIM_INFINITY)
    return format(" (this process may make files of at most %lu bytes: raise ulimit -f)", limit_of(RLIMIT_FSIZE));
  return "";
}

bool lacks_resources(int sys_errno) {
  return sys_errno == EMFILE || sys_errno == ENFILE || sys_errno == ENOBUFS || sys_errno == ENOMEM ||
         sys_errno == EADDRNOTAVAIL;
}

size_t open_descriptors() {
  struct stat status {};  // st_size is the number from Linux 6.2 on; before, entries are counted
  if (::stat("/proc/self/fd", &status) == 0 && status.st_size > 0) return static_cast<size_t>(status.st_size);
  const size_t n = entries_of("/proc/self/fd").size();
  return n == 0 ? 0 : n - 1;  // without the descriptor that lists the folder
}

Result<void> check_descriptors(size_t open, size_t more, const std::string& who) {
  const uint64_t limit = limit_of(RLIMIT_NOFILE);
  if (open == 0 || open + more <= limit) return {};
  return Error{
      Code::kSystemError,
      format("too few descriptors: this process has %zu open of the %lu that it may have, and %s needs at least %zu "
             "more: raise ulimit -n to more than %zu",
             open, limit, who.c_str(), more, open + more),
      -1, EMFILE};
}

// The kernel sends both signals to the thread that made the call.
NoWriteSignal::NoWriteSignal() {
  sigset_t pending;
  sigpending(&pending);
  sigemptyset(&ours_);
  for (const int signal : {SIGXFSZ, SIGPIPE})
    if (sigismember(&pending, signal) == 0) sigaddset(&ours_, signal);
  pthread_sigmask(SIG_BLOCK, &ours_, &before_);
}

NoWriteSignal::~NoWriteSignal() {
  const int caller_errno = errno;
  const timespec at_once{};
  while (sigtimedwait(&ours_, nullptr, &at_once) > 0) continue;
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = caller_errno;
}

}  // namespace tutti
