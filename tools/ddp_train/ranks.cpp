#include "ranks.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "../cli/command_line.h"

namespace tutti::train {
namespace {

struct Process {
  pid_t pid;
  int wait_status = 0;
};

int fail(const char* what) {
  fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
  return perf::kExitFailed;
}

int run_threads(RankSetup setup, int first, int count, const std::function<int(const RankSetup&)>& body) {
  std::vector<int> statuses(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; i++) {
    setup.rank = first + i;
    threads.emplace_back([&body, &statuses, setup, i] { statuses[static_cast<size_t>(i)] = body(setup); });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(statuses.begin(), statuses.end());
}

// Never returns: the child must not clean up the parent's state.
[[noreturn]] void be_process(RankSetup setup, int index, int ranks, int id_pipe, pid_t parent,
                             const std::function<int(const RankSetup&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no orphans
  if (getppid() != parent) _exit(perf::kExitFailed);
  int status = perf::kExitFailed;
  // Written atomically for every process, so it is read at once.
  if (read(id_pipe, &setup.id, sizeof setup.id) == static_cast<ssize_t>(sizeof setup.id))
    status = run_threads(setup, index * ranks, ranks, body);
  _exit(cli::printed(status, program_invocation_short_name));
}

int wait_for(const std::vector<Process>& processes) {
  int worst = 0;
  bool killed = false, good = false;
  for (size_t left = processes.size(); left > 0; left--) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, 0);
    for (size_t i = 0; i < processes.size(); i++) {
      if (processes[i].pid == pid && WIFSIGNALED(status))
        fprintf(stderr, "%s: rank %zu was killed by signal %d (%s)\n", program_invocation_short_name, i,
                WTERMSIG(status), strsignal(WTERMSIG(status)));
    }
    killed |= WIFSIGNALED(status);
    good |= WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (WIFEXITED(status)) worst = std::max(worst, WEXITSTATUS(status));
  }
  return killed && !good ? perf::kExitFailed : worst;
}

bool send_id(int to, size_t readers) {
  tuttiUniqueId id;
  if (tuttiGetUniqueId(&id) != tuttiSuccess) {
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, tuttiGetLastError(nullptr));
    return false;
  }
  for (size_t i = 0; i < readers; i++)
    if (write(to, &id, sizeof id) != static_cast<ssize_t>(sizeof id)) return false;
  return true;
}

}  // namespace

// Forks first and makes the id afterwards, because that starts a thread.
int run_ranks(int count, bool threads, const std::function<int(const RankSetup&)>& body) {
  const int n_processes = threads ? 1 : count, ranks_each = threads ? count : 1;
  int ends[2];
  if (pipe(ends) != 0) return fail("pipe");
  RankSetup setup;
  setup.size = count;
  fflush(stdout);
  signal(SIGCHLD, SIG_DFL);  // if the parent has it ignored, nobody is told how a rank ended
  const pid_t parent = getpid();
  std::vector<Process> processes;
  for (int i = 0; i < n_processes; i++) {
    const pid_t pid = fork();
    if (pid == 0) {
      close(ends[1]);
      be_process(setup, i, ranks_each, ends[0], parent, body);
    }
    if (pid < 0) {
      fail("fork");
      break;
    }
    processes.push_back({pid});
  }
  const bool complete = processes.size() == static_cast<size_t>(n_processes);
  const bool sent = complete && send_id(ends[1], processes.size());
  close(ends[1]);
  close(ends[0]);
  const int status = wait_for(processes);
  return sent ? status : perf::kExitFailed;
}

}  // namespace tutti::train
