// What the flight recorder costs an operation: two ranks, each on its own CPU, do all-reduces of 8 bytes, alternately
// as they are and with a second recorder, which begins and ends each operation just as the communicator's own does.
// The difference is the cost of one recorder, beside the rest of an operation. A benchmark, not a test.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "cpus.h"
#include "debug/recorder.h"
#include "tutti/tutti.h"

using namespace tutti;  // NOLINT

namespace {

constexpr int kTurns = 1500, kOperations = 1000;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(tuttiComm_t comm, int rank) : comm_(comm) { second_.share(rank, 2, 1); }

  // Nanoseconds per operation.
  double turn(bool records) {
    const int64_t begun = now_ns();
    for (int i = 0; i < kOperations; i++) {
      if (records) second_.begin(call_, ++sequence_, this);
      well_ = tuttiAllReduce(&value_, &value_, 1, tuttiFloat64, tuttiMax, comm_, nullptr) == tuttiSuccess && well_;
      if (records) second_.end();
    }
    return static_cast<double>(now_ns() - begun) / kOperations;
  }
  bool is_well() const { return well_; }
  bool is_shared() const { return !second_.path().empty(); }

 private:
  const TagWords call_ = to_tag({.count = 1, .collective = Collective::kAllReduce, .dtype = DataType::kFloat64});
  tuttiComm_t comm_;
  Recorder second_;
  uint64_t sequence_ = 0;
  double value_ = 1;
  bool well_ = true;
};

bool pin(int rank) {
  const std::vector<int> cpus = tutti_test::cpus_here();
  return static_cast<size_t>(rank) < cpus.size() && tutti_test::stay_on({cpus[static_cast<size_t>(rank)]});
}

int be_rank(int rank, const tuttiUniqueId& id) {
  tuttiComm_t comm = nullptr;
  if (!pin(rank)) return fprintf(stderr, "there is no CPU for rank %d: this needs two\n", rank), 1;
  if (tuttiCommInitRank(&comm, 2, id, rank) != tuttiSuccess) return 1;
  Bench bench(comm, rank);
  std::vector<double> off, on, difference;
  for (int turn = 0; turn < kTurns && bench.is_well(); turn++) {
    const bool first = turn % 2 == 0;
    (first ? on : off).push_back(bench.turn(first));
    (first ? off : on).push_back(bench.turn(!first));
    difference.push_back(on.back() - off.back());
  }
  if (rank == 0)
    printf(
        "%.1f ns for an operation: %.1f ns with a second recorder, %.1f ns without (medians of %d turns of %d), in "
        "%s\n",
        median(difference), median(on), median(off), kTurns, kOperations,
        bench.is_shared() ? "shared memory" : "private memory");
  return bench.is_well() && tuttiCommDestroy(comm) == tuttiSuccess ? 0 : 1;
}

}  // namespace

int main() {
  tuttiUniqueId id;
  int ends[2], failed = 0, status = 0;
  if (pipe(ends) != 0) return 1;
  const pid_t other = fork();
  if (other == 0) return read(ends[0], &id, sizeof id) == static_cast<ssize_t>(sizeof id) ? be_rank(1, id) : 1;
  if (tuttiGetUniqueId(&id) != tuttiSuccess || write(ends[1], &id, sizeof id) < 0) return 1;
  failed = be_rank(0, id);
  return waitpid(other, &status, 0) != other || status != 0 || failed != 0 ? 1 : 0;
}
