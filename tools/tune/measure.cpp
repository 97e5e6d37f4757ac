#include "measure.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "../perf/buffer.h"

namespace tutti::tune {
namespace {

using perf::Status, perf::now_seconds, perf::text;

// Operations in a row on one communicator, after one that is not counted. Long compared with the burst that a network
// may accept before its speed counts.
constexpr double kTurnSeconds = 0.01;
constexpr int kMostInTurn = 1000;
const size_t kFree = algorithms().size();  // the communicator without a forced algorithm

struct Tested {
  const char* name;
  Collective collective;
  tuttiResult_t (*run)(const void* in, void* out, size_t count, tuttiComm_t comm);
};
constexpr Tested kTested[] = {
    {"tuttiAllReduce", Collective::kAllReduce,
     [](const void* in, void* out, size_t n, tuttiComm_t c) {
       return tuttiAllReduce(in, out, n, tuttiFloat, tuttiSum, c, nullptr);
     }},
    {"tuttiBroadcast", Collective::kBroadcast,
     [](const void* in, void* out, size_t n, tuttiComm_t c) {
       return tuttiBroadcast(in, out, n, tuttiFloat, 0, c, nullptr);
     }},
    {"tuttiReduce", Collective::kReduce,
     [](const void* in, void* out, size_t n, tuttiComm_t c) {
       return tuttiReduce(in, out, n, tuttiFloat, tuttiSum, 0, c, nullptr);
     }},
    {"tuttiAllGather", Collective::kAllGather,
     [](const void* in, void* out, size_t n, tuttiComm_t c) {
       return tuttiAllGather(in, out, n, tuttiFloat, c, nullptr);
     }},
    {"tuttiReduceScatter", Collective::kReduceScatter,
     [](const void* in, void* out, size_t n, tuttiComm_t c) {
       return tuttiReduceScatter(in, out, n, tuttiFloat, tuttiSum, c, nullptr);
     }},
    {"tuttiAlltoAll", Collective::kAllToAll,
     [](const void* in, void* out, size_t n, tuttiComm_t c) {
       return tuttiAlltoAll(in, out, n, tuttiFloat, c, nullptr);
     }},
};

// One rank's part.
class Measuring {
 public:
  Measuring(const perf::Options& options, perf::Team& team) : options_(options), team_(team) {}
  ~Measuring() {
    // An earlier failure matters more.
    for (tuttiComm_t comm : comms_)
      if (comm != nullptr) static_cast<void>(tuttiCommDestroy(comm));
  }
  Measuring(const Measuring&) = delete;
  Measuring& operator=(const Measuring&) = delete;

  Status run(const std::string& transports, std::vector<Sample>* samples) {
    samples_ = samples;
    if (Status s = team_.agree(join(transports)); !s) return s;
    const size_t bytes = options_.max_bytes + sizeof(float);
    if (Status s = in_.allocate(bytes, perf::Memory::kHost); !s) return s;
    if (Status s = out_.allocate(bytes, perf::Memory::kHost); !s) return s;
    memset(in_.data(), 0, bytes);
    memset(out_.data(), 0, bytes);
    if (Status s = print_header(); !s) return s;
    for (const Tested& tested : kTested) {
      size_t size = options_.min_bytes;
      do {
        if (Status s = run_point(tested, size); !s) return s;
      } while (perf::next_size(options_, sizeof(float), &size));
    }
    return {};
  }

 private:
  // One communicator for each algorithm and one without, on the ranks of the first one.
  Status join(const std::string& transports) {
    for (size_t i = 0; i <= kFree; i++) {
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      if (!transports.empty()) config.transports = transports.c_str();
      config.algo = i == kFree ? "" : algorithms()[i]->name;
      const tuttiResult_t result = tuttiCommSplit(team_.comm(), 0, team_.rank(), &comms_[i], &config);
      if (result != tuttiSuccess) return perf::library_error("tuttiCommSplit", result, team_.comm());
    }
    return {};
  }

  Status print_header() {
    std::string why;
    if (Status s = explain(kTested[0], kFree, &why); !s) return s;
    const auto facts = facts_from_text(why);
    if (!facts) return perf::Error{"tuttiExplain gives no facts: " + why};
    facts_ = *facts;
    if (team_.rank() != 0) return {};
    printf(
        "# %s# microseconds, medians of %d turns, the slowest rank's; *: the best; ratio: chosen / best, = if the "
        "same\n",
        to_text(facts_).c_str(), options_.iters);
    printf("# %-18s %9s", "", "bytes");
    for (const Algorithm* algorithm : algorithms()) printf(" %11s", algorithm->name);
    printf(" %11s %6s %9s  chosen\n", "chosen", "ratio", "predicted");
    return {};
  }

  Status run_point(const Tested& tested, size_t bytes) {
    count_ = bytes / sizeof(float) / (traits(tested.collective).in_blocks() ? static_cast<size_t>(team_.n_ranks()) : 1);
    if (count_ == 0) return {};
    show_progress(tested, bytes);
    std::vector<size_t> entrants;  // each other algorithm equals one of these
    for (size_t i = 0; i < kFree; i++)
      if (has_own(tested, i)) entrants.push_back(i);
    entrants.push_back(kFree);
    int operations = 1;
    if (Status s = warm_up(tested, entrants, &operations); !s) return s;
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
    return team_.agree(report(tested, entrants, times));
  }

  // Makes links, and finds the number of operations in a turn.
  Status warm_up(const Tested& tested, const std::vector<size_t>& entrants, int* operations) {
    std::vector<double> seconds;
    for (const size_t entrant : entrants) {
      double each = 0;
      for (int i = 0; i < 2; i++)
        if (Status s = time(tested, entrant, 2, &each); !s) return s;
      seconds.push_back(each);
    }
    if (Status s = team_.reduce(&seconds, tuttiMax); !s) return s;
    *operations = std::clamp(static_cast<int>(kTurnSeconds / std::max(median(seconds), 1e-9)), 1, kMostInTurn);
    return {};
  }

  static bool has_own(const Tested& tested, size_t algorithm) {
    return algorithms()[algorithm]->method(tested.collective).build != nullptr;
  }

  Status explain(const Tested& tested, size_t entrant, std::string* why) const {
    char words[4000];
    size_t bytes = sizeof words;
    const tuttiResult_t result =
        tuttiExplain(tested.name, count_, tuttiFloat, tuttiSum, comms_[entrant], words, &bytes);
    if (result != tuttiSuccess) return perf::library_error("tuttiExplain", result, comms_[entrant]);
    *why = words;
    return {};
  }

  Status time(const Tested& tested, size_t entrant, int operations, double* each) {
    double begin = 0;
    for (int i = 0; i <= operations; i++) {
      const tuttiResult_t result = tested.run(in_.data(), out_.data(), count_, comms_[entrant]);
      if (result != tuttiSuccess) return perf::library_error(tested.name, result, comms_[entrant]);
      // A root need not wait for anybody: operations still in progress would count for the next ones.
      if (i > 0 && i < operations) continue;
      if (Status s = team_.barrier(); !s) return s;
      if (i == 0) begin = now_seconds();
    }
    *each = (now_seconds() - begin) / operations;
    return {};
  }

  // The algorithm in the marked line of an explanation's table: "* ring        12.34".
  static Algo algo_in(const std::string& why, double* predicted_us) {
    char name[32] = "";
    const size_t at = why.find("\n* ");
    if (at == why.npos || sscanf(why.c_str() + at, " * %31s %lf", name, predicted_us) < 2) return Algo::kAuto;
    return algo_named(name);
  }

  Status report(const Tested& tested, const std::vector<size_t>& entrants,
                const std::vector<std::vector<double>>& times) {
    if (team_.rank() != 0) return {};
    std::vector<Algo> algos(kFree + 1);
    double predicted_us = 0;
    size_t best = entrants[0];
    for (const size_t entrant : entrants) {
      std::string why;
      if (Status s = explain(tested, entrant, &why); !s) return s;
      algos[entrant] = algo_in(why, &predicted_us);
      samples_->push_back({facts_, tested.collective, count_ * sizeof(float), algos[entrant],
                           entrant == kFree && entrants.size() > 1, median(times[entrant]) * 1e9});
      if (entrant != kFree && median(times[entrant]) < median(times[best])) best = entrant;
    }
    // Turn by turn, so that a temporary disturbance affects both.
    std::vector<double> ratios;
    for (size_t turn = 0; turn < times[best].size(); turn++) ratios.push_back(times[kFree][turn] / times[best][turn]);
    show_progress(tested, 0);
    printf("  %-18s %9zu", tested.name, count_ * sizeof(float));
    for (size_t i = 0; i <= kFree; i++)
      printf(" %11s", times[i].empty() ? "-" : text("%.2f%s", median(times[i]) * 1e6, i == best ? "*" : " ").c_str());
    printf(" %5.2f%c %9.2f  %s\n", median(ratios), algos[best] == algos[kFree] ? '=' : ' ', predicted_us,
           algo_name(algos[kFree]));
    fflush(stdout);
    return {};
  }

  // 0 bytes remove the line.
  void show_progress(const Tested& tested, size_t bytes) const {
    if (team_.rank() != 0 || !isatty(STDERR_FILENO)) return;
    if (bytes == 0)
      fprintf(stderr, "\r\033[K");
    else
      fprintf(stderr, "\r\033[Kmeasuring %s of %s ...", tested.name,
              perf::human_bytes(static_cast<double>(bytes)).c_str());
    fflush(stderr);
  }

  const perf::Options& options_;
  perf::Team& team_;
  std::vector<tuttiComm_t> comms_ = std::vector<tuttiComm_t>(kFree + 1);
  perf::Buffer in_, out_;
  Facts facts_;
  size_t count_ = 1;
  std::vector<Sample>* samples_ = nullptr;
};

}  // namespace

perf::Status measure(const perf::Options& options, const std::string& transports, perf::Team& team,
                     std::vector<Sample>* samples) {
  return Measuring(options, team).run(transports, samples);
}

}  // namespace tutti::tune
