#include "report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "../perf/status.h"

namespace tutti::soak {
namespace {

struct Spread {
  uint64_t n;  // all of them; the others are of those that are kept
  double median, p99, worst;
};

Spread spread_of(const Samples& samples) {
  std::vector<float> all(samples.ms, samples.ms + samples.kept());
  if (all.empty()) return {0, 0, 0, 0};
  std::sort(all.begin(), all.end());
  return {samples.n, all[all.size() / 2], all[all.size() * 99 / 100], all.back()};
}

void line(FILE* out, const char* what, uint64_t n, const std::string& more = "") {
  fprintf(out, "%-34s %12llu  %s\n", what, static_cast<unsigned long long>(n), more.c_str());
}

void line(FILE* out, const char* what, const Samples& samples) {
  const Spread s = spread_of(samples);
  line(out, what, s.n,
       perf::text("median %.1f ms, 99%% %.1f ms, worst %.1f ms%s", s.median, s.p99, s.worst,
                  s.n > Samples::kMost ? perf::text(" (of the latest %zu)", Samples::kMost).c_str() : ""));
}

uint64_t all_faults(const Fate& fate) {
  uint64_t sum = 0;
  for (const auto& [name, n] : fate.faults) sum += n;
  return sum;
}

}  // namespace

uint64_t failures(const Board& board, const Fate& fate) {
  const Counts& c = board.counts;
  const uint64_t without_work = c.operations == 0;
  return c.wrong + c.unexplained + c.misnamed + c.left_behind + c.failed + c.leaks + fate.hangs + fate.crashes +
         fate.stray_children + fate.left_files + without_work;
}

void print_report(FILE* out, const Options& options, const Board& board, const Fate& fate) {
  const Counts& c = board.counts;
  fprintf(out, "tutti-soak: %.0f s, %d ranks on %d hosts, transports %s, seed %llu\n", fate.seconds, options.ranks,
          options.hosts, options.transports.empty() ? "as they come" : options.transports.c_str(),
          static_cast<unsigned long long>(options.seed));
  line(out, "operations, each rank's checked", c.operations, perf::human_bytes(static_cast<double>(c.bytes)));
  line(out, "faults", all_faults(fate));
  for (const auto& [name, n] : fate.faults) line(out, ("  " + name).c_str(), n);
  line(out, "processes killed", fate.kills);
  line(out, "groups that worked", c.groups,
       perf::text("%llu by shrinking, %llu gatherings, %llu given up", static_cast<unsigned long long>(c.shrinks),
                  static_cast<unsigned long long>(c.growths), static_cast<unsigned long long>(c.growths_given_up)));
  line(out, "survivors that met deaths", c.deaths_met,
       perf::text("%llu of them had a dead rank named", static_cast<unsigned long long>(c.deaths_named)));
  line(out, "  from a death to the error", board.until_error);
  line(out, "  from the last one to a good one", board.until_good);
  if (options.hosts > 1) line(out, "ranks cut off, without a majority", c.without_majority);
  line(out, "hangs", fate.hangs);
  line(out, "wrong results", c.wrong);
  line(out, "leaks", c.leaks + fate.stray_children + fate.left_files);
  line(out, "crashes", fate.crashes);
  line(out, "errors without a reason", c.unexplained);
  line(out, "living ranks said to be lost", c.misnamed);
  line(out, "shrinks that failed", c.failed + c.left_behind);
  fprintf(out, "%s\n", failures(board, fate) == 0 ? "ok" : c.operations > 0 ? "FAILED" : "FAILED: nothing was done");
}

std::string json_text(const Options& options, const Board& board, const Fate& fate) {
  const Counts& c = board.counts;
  const auto times = [](const Samples& samples) {
    const Spread s = spread_of(samples);
    return nlohmann::ordered_json{{"n", s.n}, {"median_ms", s.median}, {"p99_ms", s.p99}, {"worst_ms", s.worst}};
  };
  nlohmann::ordered_json j = {{"seconds", fate.seconds},
                              {"ranks", options.ranks},
                              {"hosts", options.hosts},
                              {"transports", options.transports},
                              {"seed", options.seed},
                              {"operations", c.operations.load()},
                              {"bytes", c.bytes.load()},
                              {"faults", fate.faults},
                              {"killed", fate.kills},
                              {"joined", fate.joined},
                              {"groups", c.groups.load()},
                              {"shrinks", c.shrinks.load()},
                              {"gatherings", c.growths.load()},
                              {"gatherings_given_up", c.growths_given_up.load()},
                              {"deaths_met", c.deaths_met.load()},
                              {"deaths_named", c.deaths_named.load()},
                              {"until_error", times(board.until_error)},
                              {"until_good", times(board.until_good)},
                              {"without_majority", c.without_majority.load()},
                              {"hangs", fate.hangs},
                              {"wrong", c.wrong.load()},
                              {"leaks", c.leaks + fate.stray_children + fate.left_files},
                              {"crashes", fate.crashes},
                              {"unexplained", c.unexplained.load()},
                              {"misnamed", c.misnamed.load()},
                              {"failed_shrinks", c.failed + c.left_behind}};
  return j.dump(2) + "\n";
}

}  // namespace tutti::soak
