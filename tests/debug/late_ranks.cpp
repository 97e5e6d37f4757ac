// How reliably a late rank is named: late_ranks [RANKS [MILLISECONDS [ROUNDS]]]
// Each round has 1,000 steps, each with a little work and an all-reduce of 8 bytes; in every fourth step on average
// one rank sleeps first. A benchmark, not a test: on a machine that has other things to do, ranks are late without a
// sleep, too.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "base/clock.h"
#include "debug/lateness.h"
#include "tutti/tutti.h"

using namespace tutti;  // NOLINT

namespace {

constexpr int kSteps = 1000;
constexpr int64_t kWorkNs = 100'000;

// The rank that sleeps before each step; -1: none.
std::vector<int> make_plan(int n_ranks, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> plan;
  for (int step = 0; step < kSteps; step++) {
    const int late = static_cast<int>(random() % static_cast<unsigned>(n_ranks));
    plan.push_back(step > 0 && random() % 4 == 0 ? late : -1);
  }
  return plan;
}

void be_rank(int rank, int n_ranks, const tuttiUniqueId& id, const std::vector<int>& plan, useconds_t late_us) {
  tuttiComm_t comm = nullptr;
  bool well = tuttiCommInitRank(&comm, n_ranks, id, rank) == tuttiSuccess;
  double value = 1;
  for (int step = 0; step < kSteps && well; step++) {
    for (const int64_t end = now_ns() + kWorkNs; now_ns() < end;) {
    }
    if (plan[static_cast<size_t>(step)] == rank) usleep(late_us);
    well = tuttiAllReduce(&value, &value, 1, tuttiFloat64, tuttiMax, comm, nullptr) == tuttiSuccess;
  }
  well = well && tuttiCommFinalize(comm) == tuttiSuccess;
  if (!well) fprintf(stderr, "rank %d: %s\n", rank, tuttiGetLastError(comm));
  _exit(well ? 0 : 1);  // its trace file stays
}

struct Figures {
  int late = 0, named = 0, others = 0, falsely = 0;
};

void count(const std::string& folder, const std::vector<int>& plan, Figures* figures) {
  std::map<uint64_t, std::map<int, Attendance>> operations;
  std::optional<TickClock> clock;
  for (const std::string& path : trace_files(folder)) {
    auto file = TraceFile::open(path);
    if (!file) continue;
    if (!clock) clock.emplace(file.value().header());
    const Trace trace = file.value().read(*clock);
    for (const Attendance& at : AttendanceReader().follow(trace)) operations[at.sequence].emplace(trace.rank, at);
    unlink(path.c_str());
  }
  for (uint64_t step = 1; step < kSteps; step++) {
    const int expected = plan[step], found = find_straggler(operations[step + 1]).rank;
    (expected >= 0 ? figures->late : figures->others)++;
    if (expected >= 0 && found == expected) figures->named++;
    if (found >= 0 && found != expected) figures->falsely++;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int n_ranks = argc > 1 ? atoi(argv[1]) : 4;
  const double late_ms = argc > 2 ? atof(argv[2]) : 5;
  const int rounds = argc > 3 ? atoi(argv[3]) : 3;
  char folder[] = "/dev/shm/late-ranks-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  setenv("TUTTI_TRACE_DIR", folder, 1);
  Figures figures;
  int failed = 0;
  for (int round = 0; round < rounds && failed == 0; round++) {
    const std::vector<int> plan = make_plan(n_ranks, static_cast<unsigned>(round));
    int ends[2];
    tuttiUniqueId id;
    if (pipe(ends) != 0) return 1;
    const pid_t root = fork();  // where the ranks meet: the process that makes the id has a thread
    if (root == 0) {
      if (tuttiGetUniqueId(&id) != tuttiSuccess || write(ends[1], &id, sizeof id) < 0) _exit(1);
      for (;;) pause();
    }
    if (read(ends[0], &id, sizeof id) != static_cast<ssize_t>(sizeof id)) return 1;
    for (int rank = 0; rank < n_ranks; rank++)
      if (fork() == 0) be_rank(rank, n_ranks, id, plan, static_cast<useconds_t>(late_ms * 1e3));
    for (int rank = 0, status = 0; rank < n_ranks; rank++) failed += wait(&status) < 0 || status != 0;
    kill(root, SIGKILL);
    waitpid(root, nullptr, 0);
    count(folder, plan, &figures);
  }
  std::filesystem::remove_all(folder);
  if (failed != 0) return fprintf(stderr, "a rank has failed\n"), 1;
  printf(
      "%d ranks, late by %.1f ms: named in %d of %d steps (%.2f %%); in %d others somebody was named %d times (%.2f "
      "%%)\n",
      n_ranks, late_ms, figures.named, figures.late, 100.0 * figures.named / figures.late, figures.others,
      figures.falsely, 100.0 * figures.falsely / figures.others);
  return 0;
}
