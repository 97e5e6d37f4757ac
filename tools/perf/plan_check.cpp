// How good the planner's choices are: measures each collective and size with every algorithm forced and with none, all
// in turns in the same processes, and prints what share of the free choices is close to the best forced one, or the
// same: what two communicators with one plan differ by is the machine's, and the best of seven noisy times is mostly
// luck. Takes the sizes, ranks, transports and iterations (-n: turns) of the perf tools.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "buffer.h"
#include "launch.h"
#include "options.h"
#include "report.h"
#include "run.h"
#include "team.h"

namespace tutti::perf {
namespace {

constexpr Collective kTool = {
    .tool = "plan_check", .call = "all collectives that have algorithms", .layout = same_size};
constexpr double kCloseEnough = 1.1;
// Of one communicator in a row, after one that does not count.
constexpr double kTurnSeconds = 0.002;
constexpr int kMostInTurn = 1000;
// Before the planner measures, and at most until it has settled.
constexpr int kFirstOperations = 20, kMostWarmUps = 20000;

constexpr std::array kAlgos = {"ring", "tree", "direct", "oneshot", "halving", "hierarchical", "doubling", "star"};
constexpr size_t kFree = kAlgos.size();  // the communicator without a forced one

struct Tested {
  const char* name;
  bool in_blocks;  // a size is that of all ranks' blocks
  size_t algos;    // the first of kAlgos; the others are the same as one of them
  tuttiResult_t (*run)(const void* in, void* out, size_t count, tuttiComm_t comm);
};
constexpr Tested kTested[] = {
    {"tuttiAllReduce", false, kAlgos.size(),
     [](const void* in, void* out, size_t n, tuttiComm_t c) {
       return tuttiAllReduce(in, out, n, tuttiFloat, tuttiSum, c, nullptr);
     }},
    {"tuttiBroadcast", false, 3,
     [](const void* in, void* out, size_t n, tuttiComm_t c) {
       return tuttiBroadcast(in, out, n, tuttiFloat, 0, c, nullptr);
     }},
    {"tuttiReduce", false, 3,
     [](const void* in, void* out, size_t n, tuttiComm_t c) {
       return tuttiReduce(in, out, n, tuttiFloat, tuttiSum, 0, c, nullptr);
     }},
    {"tuttiAllGather", true, 3,
     [](const void* in, void* out, size_t n, tuttiComm_t c) {
       return tuttiAllGather(in, out, n, tuttiFloat, c, nullptr);
     }},
    {"tuttiReduceScatter", true, 3,
     [](const void* in, void* out, size_t n, tuttiComm_t c) {
       return tuttiReduceScatter(in, out, n, tuttiFloat, tuttiSum, c, nullptr);
     }},
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// One rank's part.
class Check {
 public:
  Check(const Options& options, Team& team) : options_(options), team_(team) {}
  ~Check() {
    // What failed before matters more.
    for (tuttiComm_t comm : comms_)
      if (comm != nullptr) static_cast<void>(tuttiCommDestroy(comm));
  }
  Check(const Check&) = delete;
  Check& operator=(const Check&) = delete;

  Status run() {
    if (Status s = team_.agree(join()); !s) return s;
    const size_t bytes = options_.max_bytes + sizeof(float);
    if (Status s = in_.allocate(bytes, Memory::kHost); !s) return s;
    if (Status s = out_.allocate(bytes, Memory::kHost); !s) return s;
    memset(in_.data(), 0, bytes);
    memset(out_.data(), 0, bytes);
    print_header();
    for (const Tested& tested : kTested) {
      size_t size = options_.min_bytes;
      do {
        if (Status s = run_point(tested, size); !s) return s;
      } while (next_size(options_, sizeof(float), &size));
    }
    if (team_.rank() == 0)
      printf("# %d of %d points (%.0f %%) take the best forced algorithm's plan or are within %.0f %% of its time\n",
             close_, points_, 100.0 * close_ / std::max(1, points_), 100 * (kCloseEnough - 1));
    return {};
  }

 private:
  // A communicator for each algorithm and one that is free, over the ranks of the first.
  Status join() {
    for (size_t i = 0; i <= kFree; i++) {
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      if (!options_.transports.empty()) config.transports = options_.transports.c_str();
      config.algo = i == kFree ? "" : kAlgos[i];
      const tuttiResult_t result = tuttiCommSplit(team_.comm(), 0, team_.rank(), &comms_[i], &config);
      if (result != tuttiSuccess) return library_error("tuttiCommSplit", result, team_.comm());
    }
    return {};
  }

  void print_header() const {
    if (team_.rank() != 0) return;
    printf(
        "# microseconds: medians of %d turns of each, the slowest rank's; ratio: without a forced algorithm / best,\n"
        "# with = where both take the same plan\n",
        options_.iters);
    printf("# %d ranks\n# %-18s %10s", team_.n_ranks(), "", "bytes");
    for (const char* algo : kAlgos) printf(" %12s", algo);
    printf(" %12s %6s  taken\n", "free", "ratio");
  }

  Status run_point(const Tested& tested, size_t bytes) {
    count_ = bytes / sizeof(float) / (tested.in_blocks ? static_cast<size_t>(team_.n_ranks()) : 1);
    if (count_ == 0) return {};
    std::vector<size_t> entrants(tested.algos);
    for (size_t i = 0; i < tested.algos; i++) entrants[i] = i;
    entrants.push_back(kFree);
    std::vector<double> seconds;
    if (Status s = warm_up(tested, entrants, &seconds); !s) return s;
    const double typical = median(seconds);
    const int operations = operations_in_turn(typical);
    std::vector<std::vector<double>> times(kFree + 1);
    for (int turn = 0; turn < options_.iters; turn++)
      for (size_t i = 0; i < entrants.size(); i++) {
        const size_t entrant = entrants[(i + static_cast<size_t>(turn)) % entrants.size()];
        double each = 0;
        if (Status s = time(tested, entrant, operations, &each); !s) return s;
        times[entrant].push_back(each);
      }
    for (const size_t entrant : entrants)
      if (Status s = team_.reduce(&times[entrant], tuttiMax); !s) return s;
    return team_.agree(report(tested, bytes, entrants, times));
  }

  static int operations_in_turn(double seconds_each) {
    return std::clamp(static_cast<int>(kTurnSeconds / std::max(seconds_each, 1e-9)), 1, kMostInTurn);
  }

  // Until all have settled; all ranks see that after the same operation. Many in a row as later: a look at how far a
  // race is takes longer than a small operation, and a race between such looks finds what is best there.
  Status warm_up(const Tested& tested, const std::vector<size_t>& entrants, std::vector<double>* seconds) {
    for (const size_t entrant : entrants) {
      bool racing = true;
      double each = 0;
      for (int i = 0, operations = 1; racing && i < kMostWarmUps; i += operations + 1) {
        if (Status s = time(tested, entrant, operations, &each); !s) return s;
        if (i < kFirstOperations) continue;
        std::vector<double> slowest(1, each);
        if (Status s = team_.reduce(&slowest, tuttiMax); !s) return s;
        operations = operations_in_turn(slowest[0]);
        std::string why;
        if (Status s = explain(tested, entrant, &why); !s) return s;
        racing = why.find("being tried out") != std::string::npos;
      }
      seconds->push_back(each);
    }
    return team_.reduce(seconds, tuttiMax);
  }

  Status explain(const Tested& tested, size_t entrant, std::string* why) const {
    char words[4000];
    size_t bytes = sizeof words;
    const tuttiResult_t result =
        tuttiExplain(tested.name, count_, tuttiFloat, tuttiSum, comms_[entrant], words, &bytes);
    if (result != tuttiSuccess) return library_error("tuttiExplain", result, comms_[entrant]);
    *why = words;
    return {};
  }

  Status time(const Tested& tested, size_t entrant, int operations, double* each) {
    double begin = 0;
    for (int i = 0; i <= operations; i++) {
      if (i == 1) begin = now_seconds();
      const tuttiResult_t result = tested.run(in_.data(), out_.data(), count_, comms_[entrant]);
      if (result != tuttiSuccess) return library_error(tested.name, result, comms_[entrant]);
    }
    // A root need not wait for anybody: what its turn costs would count for the next one's.
    if (Status s = team_.barrier(); !s) return s;
    *each = (now_seconds() - begin) / operations;
    return {};
  }

  // The line of an explanation's table that is marked, without its times.
  static std::string plan_in(const std::string& why) {
    constexpr size_t kColumns = 21;
    return why.substr(why.find("\n* ") + 3, kColumns);
  }

  Status report(const Tested& tested, size_t bytes, const std::vector<size_t>& entrants,
                const std::vector<std::vector<double>>& times) {
    if (team_.rank() != 0) return {};
    size_t best = entrants[0];
    for (const size_t entrant : entrants)
      if (entrant != kFree && median(times[entrant]) < median(times[best])) best = entrant;
    // Turn by turn, so that what disturbs a while disturbs both.
    std::vector<double> ratios;
    for (size_t turn = 0; turn < times[best].size(); turn++) ratios.push_back(times[kFree][turn] / times[best][turn]);
    const double ratio = median(ratios);
    std::string why, best_why;
    if (Status s = explain(tested, kFree, &why); !s) return s;
    if (Status s = explain(tested, best, &best_why); !s) return s;
    const bool same = plan_in(why) == plan_in(best_why);
    points_++;
    close_ += same || ratio <= kCloseEnough;
    printf("  %-18s %10zu", tested.name, bytes);
    for (size_t i = 0; i <= kFree; i++)
      printf(" %12s", times[i].empty() ? "-" : text("%.2f%s", median(times[i]) * 1e6, i == best ? "*" : " ").c_str());
    const size_t from = why.find("ranks: ") + 7;
    printf(" %6.2f%c %s\n", ratio, same ? '=' : ' ', why.substr(from, why.find('\n') - from).c_str());
    fflush(stdout);
    return {};
  }

  const Options& options_;
  Team& team_;
  std::array<tuttiComm_t, kFree + 1> comms_{};
  Buffer in_, out_;
  size_t count_ = 0;
  int points_ = 0, close_ = 0;
};

Status run_rank_of(const Options& options, tuttiComm_t comm) {
  Team team;
  if (Status s = team.join(comm); !s) return s;
  return Check(options, team).run();
}

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) {
  return tutti::perf::launch_tool(argc, argv, tutti::perf::kTool, tutti::perf::run_rank_of);
}
