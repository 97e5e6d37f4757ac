// Ranks for tests of the C API: as threads of this process, or as forked processes that may be killed.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"
#include "contains.h"
#include "sanitized.h"
#include "tutti/tutti.h"

namespace tutti_test {

// What a rank saw, as values, because Catch2's assertions belong to the main thread.
struct Outcome {
  tuttiResult_t code = tuttiSuccess;
  std::string message;
  double seconds = 0;
  size_t wrong = 0;

  void take(tuttiResult_t result) {
    if (code != tuttiSuccess || result == tuttiSuccess) return;
    code = result;
    message = tuttiGetLastError(nullptr);
  }
};

inline tuttiUniqueId new_id() {
  tuttiUniqueId id;
  REQUIRE(tuttiGetUniqueId(&id) == tuttiSuccess);
  return id;
}

// An id for a group that not all ranks join. Its root thread waits for as long as a creation may take, and a fork under
// a sanitizer waits for that thread.
inline tuttiUniqueId id_of_few() {
  setenv("TUTTI_INIT_TIMEOUT", "2", 1);
  const tuttiUniqueId id = new_id();
  unsetenv("TUTTI_INIT_TIMEOUT");
  return id;
}

// Runs body(rank, comm, outcome) on n threads, each with its communicator, and destroys the communicators.
inline std::vector<Outcome> run_threads(int n, const tuttiConfig_t* config,
                                        const std::function<void(int, tuttiComm_t, Outcome&)>& body) {
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; r++)
    threads.emplace_back([&, r] {
      Outcome& outcome = outcomes[static_cast<size_t>(r)];
      tuttiComm_t comm = nullptr;
      outcome.take(tuttiCommInitRankConfig(&comm, n, id, r, config));
      if (comm == nullptr) return;
      body(r, comm, outcome);
      outcome.take(tuttiCommDestroy(comm));
    });
  for (auto& thread : threads) thread.join();
  return outcomes;
}

// Two ranks whose configurations do not match: creation fails on both, and names the setting.
inline void check_refused(const tuttiConfig_t (&configs)[2], const char* setting) {
  const tuttiUniqueId id = new_id();
  Outcome outcomes[2];
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      tuttiComm_t comm = nullptr;
      outcomes[r].take(tuttiCommInitRankConfig(&comm, 2, id, r, &configs[r]));
      if (comm != nullptr) tuttiCommDestroy(comm);
    });
  for (auto& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.code == tuttiInvalidUsage);
    CHECK(contains(outcome.message, setting));
  }
}

inline void require_success(const std::vector<Outcome>& outcomes) {
  for (size_t r = 0; r < outcomes.size(); r++) {
    INFO("rank " << r << ": " << outcomes[r].message);
    REQUIRE(outcomes[r].code == tuttiSuccess);
    REQUIRE(outcomes[r].wrong == 0);
  }
}

// Under ThreadSanitizer a child starts no threads if its parent had several when it forked. Root threads of groups that
// are never complete end with TUTTI_INIT_TIMEOUT, so tests that fork, tagged [processes], run in a process without
// them. One more thread is the sanitizer's.
inline void wait_for_one_thread() {
#ifdef TUTTI_TEST_TSAN
  const auto threads = [] {
    const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  for (int i = 0; i < 1000 && threads() > 2; i++) usleep(100'000);
#endif
}

// Forked ranks. Each writes its outcome as text to a pipe; the parent never touches the library's threads. They end
// with this object, or with this process.
class Processes {
 public:
  Processes(int n, const std::function<void(int, tuttiComm_t, Outcome&)>& body, const tuttiConfig_t* config = nullptr) {
    wait_for_one_thread();
    // A child makes the id, so that this process has no root thread when it forks.
    int id_pipe[2];
    REQUIRE(pipe(id_pipe) == 0);
    root_ = fork_child();
    if (root_ == 0) serve_id(id_pipe[1]);
    tuttiUniqueId id;
    close(id_pipe[1]);  // else nobody would notice the death of that child
    REQUIRE(read(id_pipe[0], &id, sizeof id) == static_cast<ssize_t>(sizeof id));
    close(id_pipe[0]);
    for (int r = 0; r < n; r++) {
      int ends[2];
      REQUIRE(pipe(ends) == 0);
      pipes_.push_back({ends[0], ends[1]});
    }
    for (int r = 0; r < n; r++) {
      pids_.push_back(fork_child());
      if (pids_.back() == 0) be_rank(r, n, id, config, body);
    }
    for (auto& p : pipes_) close(p.write_end);
  }
  Processes(const Processes&) = delete;
  // Some are left if an assertion has failed before wait().
  ~Processes() {
    if (root_ < 0) return;
    pids_.push_back(root_);
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  }

  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }

  // Waits until every rank has ended; a rank that was killed has an empty message and code tuttiNumResults.
  std::vector<Outcome> wait() {
    std::vector<Outcome> outcomes;
    for (size_t r = 0; r < pids_.size(); r++) {
      Outcome outcome;
      outcome.code = tuttiNumResults;
      std::string text;
      char buffer[4096];
      for (ssize_t n; (n = read(pipes_[r].read_end, buffer, sizeof buffer)) > 0;)
        text.append(buffer, static_cast<size_t>(n));
      close(pipes_[r].read_end);
      int code = 0, used = 0;
      if (sscanf(text.c_str(), "%d %lf %zu %n", &code, &outcome.seconds, &outcome.wrong, &used) >= 3) {
        outcome.code = static_cast<tuttiResult_t>(code);
        outcome.message = text.substr(static_cast<size_t>(used));
      }
      waitpid(pids_[r], nullptr, 0);
      outcomes.push_back(outcome);
    }
    kill(root_, SIGKILL);
    waitpid(root_, nullptr, 0);
    root_ = -1;
    return outcomes;
  }

 private:
  struct Pipe {
    int read_end, write_end;
  };

  static pid_t fork_child() {
    const pid_t parent = getpid(), pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // it has ended before that
    return 0;
  }

  [[noreturn]] static void serve_id(int to) {
    tuttiUniqueId id;
    if (tuttiGetUniqueId(&id) != tuttiSuccess) _exit(1);
    if (write(to, &id, sizeof id) < 0) _exit(1);
    for (;;) pause();
  }

  [[noreturn]] void be_rank(int rank, int n, const tuttiUniqueId& id, const tuttiConfig_t* config,
                            const std::function<void(int, tuttiComm_t, Outcome&)>& body) {
    alarm(kSanitized ? 300 : 60);  // a hang fails the test instead of stopping it
    Outcome outcome;
    tuttiComm_t comm = nullptr;
    outcome.take(tuttiCommInitRankConfig(&comm, n, id, rank, config));
    if (comm != nullptr) body(rank, comm, outcome);
    char text[2200];
    const int bytes = snprintf(text, sizeof text, "%d %f %zu %s", outcome.code, outcome.seconds, outcome.wrong,
                               outcome.message.substr(0, 2000).c_str());
    if (write(pipes_[static_cast<size_t>(rank)].write_end, text, static_cast<size_t>(bytes)) < 0) _exit(1);
    _exit(0);
  }

  std::vector<Pipe> pipes_;
  std::vector<pid_t> pids_;
  pid_t root_ = -1;
};

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tutti_test
