// How long the path is: instructions that a rank executes from the call of a small all-reduce until its peer has the
// result, and until the call returns. Rank 0 is single-stepped while rank 1, which has already sent its part, waits
// for it, so the first figure is the path from the call to the store of the flag. A benchmark, not a test: the figures
// depend on the compiler. Prints one line for each size, the minimum of several rounds.
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tutti/tutti.h"

namespace {

constexpr int kRounds = 9;
constexpr size_t kCounts[] = {1, 2, 16, 128};

struct Page {
  std::atomic<int> peer_has, rank_has;  // number of results so far
};
Page* g_page = nullptr;

void require(bool condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "%s: %s\n", what, tuttiGetLastError(nullptr));
  _exit(1);
}

[[noreturn]] void be_rank(int rank, const tuttiUniqueId& id) {
  alarm(120);
  if (rank == 0) ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  tuttiComm_t comm = nullptr;
  require(tuttiCommInitRank(&comm, 2, id, rank) == tuttiSuccess, "tuttiCommInitRank");
  float in[128] = {}, out[128];
  const auto sum = [&](size_t count) {
    require(tuttiAllReduce(in, out, count, tuttiFloat32, tuttiSum, comm, nullptr) == tuttiSuccess, "tuttiAllReduce");
  };
  for (int pass = 0; pass < 2; pass++)  // tries algorithms out; the second time with prices that were measured
    for (const size_t count : kCounts)
      for (int i = 0; i < 3000; i++) sum(count);
  for (const size_t count : kCounts)
    for (int i = 0; i <= kRounds; i++) {
      const bool counts = i > 0;  // the first operation of a size looks its algorithm up
      if (rank == 0 && counts) {
        usleep(500);  // until the peer has sent its part
        raise(SIGUSR1);
      }
      sum(count);
      if (counts) (rank == 0 ? g_page->rank_has : g_page->peer_has).fetch_add(1);
    }
  tuttiCommDestroy(comm);
  _exit(0);
}

// The next stop of the rank, or the end of this program with the rank's status.
int wait_for(pid_t rank) {
  int status = 0;
  if (waitpid(rank, &status, 0) != rank || !WIFSTOPPED(status)) {
    fprintf(stderr, "rank 0 ended while it was watched\n");
    exit(1);
  }
  return WSTOPSIG(status);
}

struct Lengths {
  int to_peer = INT_MAX, to_return = INT_MAX;
};

Lengths count_round(pid_t rank) {
  const int peer_had = g_page->peer_has, rank_had = g_page->rank_has;
  Lengths lengths;
  for (int steps = 1; g_page->rank_has == rank_had; steps++) {
    ptrace(PTRACE_SINGLESTEP, rank, nullptr, nullptr);
    wait_for(rank);
    if (lengths.to_peer == INT_MAX && g_page->peer_has > peer_had) lengths.to_peer = steps;
    lengths.to_return = steps;
  }
  return lengths;
}

}  // namespace

int main() {
  g_page = static_cast<Page*>(mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  tuttiUniqueId id;
  if (g_page == MAP_FAILED || tuttiGetUniqueId(&id) != tuttiSuccess) return 1;
  pid_t ranks[2];
  for (int rank = 0; rank < 2; rank++)
    if ((ranks[rank] = fork()) == 0) be_rank(rank, id);
  printf("%8s %14s %14s\n", "bytes", "to the flag", "to the return");
  for (const size_t count : kCounts) {
    Lengths least;
    for (int round = 0; round < kRounds; round++) {
      while (true) {
        const int signal = wait_for(ranks[0]);
        if (signal == SIGUSR1) break;
        ptrace(PTRACE_CONT, ranks[0], nullptr, signal);
      }
      const Lengths lengths = count_round(ranks[0]);
      least = {std::min(least.to_peer, lengths.to_peer), std::min(least.to_return, lengths.to_return)};
      ptrace(PTRACE_CONT, ranks[0], nullptr, nullptr);
    }
    printf("%8zu %14d %14d\n", count * sizeof(float), least.to_peer, least.to_return);
  }
  int status = 0;
  waitpid(ranks[1], &status, 0);
  return status;
}
