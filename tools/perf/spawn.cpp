#include "spawn.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "report.h"
#include "status.h"

namespace tutti::perf {
namespace {

constexpr int kInterrupts[] = {SIGINT, SIGTERM, SIGHUP};
constexpr double kInterruptGraceSeconds = 2;

struct Child {
  int index;
  pid_t pid;
  int wait_status = 0;
};

// As set by nohup, or by a shell for commands with &. A blocked signal is delivered even if it is ignored.
bool is_ignored(int signal) {
  struct sigaction now {};
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

sigset_t launcher_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (int signal : kInterrupts)
    if (!is_ignored(signal)) sigaddset(&set, signal);
  return set;
}

// Never returns. _exit, because this process must not clean up the launcher's state (whose threads are not here).
[[noreturn]] void run_child(const std::function<int(int)>& child, int index, pid_t launcher) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no orphans, even if the launcher is killed
  if (getppid() != launcher) _exit(kExitFailed);
  const sigset_t set = launcher_signals();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  const int status = child(index);
  fflush(stdout);
  fflush(stderr);
  _exit(status);
}

// Whether nothing need be added: a good end, or one that this or another rank has explained.
bool speaks_for_itself(int wait_status) {
  if (!WIFEXITED(wait_status)) return false;
  const int status = WEXITSTATUS(wait_status);
  return status <= kExitUsage || status == kExitOtherFailed;
}

class Herd {
 public:
  explicit Herd(const SpawnPlan& plan) : plan_(plan) {}

  bool fork_all(const std::function<int(int)>& child) {
    const pid_t launcher = getpid();
    for (int i = 0; i < plan_.procs; i++) {
      const pid_t pid = fork();
      if (pid == 0) run_child(child, i, launcher);
      if (pid < 0) {
        fprintf(stderr, "%s: cannot start process %d of %d: %s\n", plan_.tool, i + 1, plan_.procs, strerror(errno));
        kill_all(SIGKILL);
        while (!alive_.empty()) reap();
        return false;
      }
      alive_.push_back({i, pid});
    }
    return true;
  }

  int wait_all() {
    while (!alive_.empty()) {
      const int signal = next_signal();
      if (signal > 0 && signal != SIGCHLD) return interrupted(signal);
      reap();
      if (deadline_ > 0 && now_seconds() > deadline_) give_up();
    }
    if (failed_) describe();
    return exit_status();
  }

 private:
  // A signal, or 0 if none came for 0.1 s.
  static int next_signal() {
    const sigset_t set = launcher_signals();
    const timespec pause = {.tv_sec = 0, .tv_nsec = 100'000'000};
    return std::max(0, sigtimedwait(&set, nullptr, &pause));
  }

  void reap() {
    int wait_status = 0;
    for (pid_t pid; (pid = waitpid(-1, &wait_status, WNOHANG)) > 0;) {
      const auto it = std::find_if(alive_.begin(), alive_.end(), [&](const Child& c) { return c.pid == pid; });
      if (it == alive_.end()) continue;
      it->wait_status = wait_status;
      ended_.push_back(*it);
      alive_.erase(it);
      if (failed_ || speaks_for_itself(wait_status)) continue;
      failed_ = true;
      deadline_ = now_seconds() + plan_.grace_seconds;
    }
  }

  void kill_all(int signal) {
    for (const Child& child : alive_) kill(child.pid, signal);
  }

  void give_up() {
    for (const Child& child : alive_) {
      fprintf(stderr, "%s: %s (pid %d) did not end within %d s of the first failure and is killed\n", plan_.tool,
              ranks(child).c_str(), static_cast<int>(child.pid), plan_.grace_seconds);
    }
    kill_all(SIGKILL);
    deadline_ = 0;
  }

  int interrupted(int signal) {
    kill_all(signal);
    const double end = now_seconds() + kInterruptGraceSeconds;
    for (reap(); !alive_.empty() && now_seconds() < end; reap()) {
      // A second signal means: end at once.
      const int again = next_signal();
      if (again > 0 && again != SIGCHLD) break;
    }
    kill_all(SIGKILL);
    while (!alive_.empty()) {
      next_signal();
      reap();
    }
    return 128 + signal;
  }

  std::string ranks(const Child& child) const {
    const int first = child.index * plan_.ranks_per_proc, last = first + plan_.ranks_per_proc - 1;
    return first == last ? text("rank %d", first) : text("ranks %d to %d", first, last);
  }

  void describe() const {
    for (const Child& child : ended_) {
      if (speaks_for_itself(child.wait_status)) continue;
      const std::string who = text("%s: %s (pid %d)", plan_.tool, ranks(child).c_str(), static_cast<int>(child.pid));
      if (WIFSIGNALED(child.wait_status)) {
        const int signal = WTERMSIG(child.wait_status);
        fprintf(stderr, "%s was killed by signal %d (%s)\n", who.c_str(), signal, strsignal(signal));
      } else {
        fprintf(stderr, "%s ended with status %d\n", who.c_str(), WEXITSTATUS(child.wait_status));
      }
    }
  }

  int exit_status() const {
    int worst = 0;
    for (const Child& child : ended_) {
      worst = worse(worst, WIFEXITED(child.wait_status) ? WEXITSTATUS(child.wait_status) : kExitFailed);
    }
    return worst;
  }

  const SpawnPlan& plan_;
  std::vector<Child> alive_, ended_;
  bool failed_ = false;
  double deadline_ = 0;  // 0: none
};

}  // namespace

void block_launcher_signals() {
  signal(SIGCHLD, SIG_DFL);  // a process that ignores it, as the parent may have set, is never told how a child ended
  const sigset_t set = launcher_signals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
}

int spawn(const SpawnPlan& plan, const std::function<int(int)>& child, const std::function<void()>& meanwhile) {
  fflush(stdout);  // else every child prints what is still buffered
  fflush(stderr);
  Herd herd(plan);
  if (!herd.fork_all(child)) return kExitFailed;
  meanwhile();
  return herd.wait_all();
}

}  // namespace tutti::perf
