// tutti-sim: how long the library's schedules take on a network that a file describes.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "../cli/command_line.h"
#include "base/file.h"
#include "ddp.h"
#include "report.h"

namespace tutti::sim {
namespace {

constexpr const char* kTool = "tutti-sim";
constexpr const char* kTraining = "ddp";
constexpr const char* kExamples =
    "\nExamples:\n"
    "  tutti-sim all-reduce --ranks 64 --topology F --bytes 1G    all algorithms side by side\n"
    "  tutti-sim all-reduce --ranks 65536 --bytes 1G --algorithm ring    one of them, on hosts of 8 GPUs\n"
    "  tutti-sim broadcast --ranks 8 --topology F --bytes 1M --trace t.json    the fastest, for ui.perfetto.dev\n"
    "  tutti-sim all-reduce --ranks 4 --topology host.json    where tutti-tune has measured\n"
    "  tutti-sim ddp --model resnet50 --ranks 8..512 --compute-ms 90 --topology F    how training scales\n"
    "The topology's fields are described in the sources' tools/sim/README.md, beside an example, two_racks.json.\n"
    "Exit status: 0 good, 1 failed, 2 wrong usage.\n";

struct Settings {
  std::string operation, topology, algorithm, trace, bytes = "1M", range;
  int row = 1;
  int ranks = 0;  // the first of the range; 0: not given
  bool json = false;
  Training training;
};

struct Named {
  const char* name;
  Collective collective;
};
constexpr Named kOperations[] = {
    {"all-reduce", Collective::kAllReduce},
    {"all-gather", Collective::kAllGather},
    {"reduce-scatter", Collective::kReduceScatter},
    {"broadcast", Collective::kBroadcast},
    {"reduce", Collective::kReduce},
    {"all-to-all", Collective::kAllToAll},
};

// "1G" and similar, as the perf tools read it.
Result<uint64_t> parse_bytes(const std::string& text) {
  char* end = nullptr;
  const double number = text.find_first_not_of("0123456789.KMGTkmgt") == text.npos ? strtod(text.c_str(), &end) : -1;
  const std::string unit = number >= 0 && end != text.c_str() ? end : "?";
  const size_t power = unit.empty() ? 0 : std::string(" KMGT").find(static_cast<char>(toupper(unit[0])));
  const double bytes = power == std::string::npos ? -1 : std::ldexp(number, static_cast<int>(10 * power));
  if (unit.size() > 1 || !(bytes >= 1 && bytes <= 0x1p50))
    return Error{Code::kInvalidUsage,
                 "--bytes " + text + ": must be a size from 1 byte to 1024T, such as 8, 64K, 1.5M or 2G"};
  return static_cast<uint64_t>(bytes);
}

// One rack with as many hosts as needed, each with 8 GPUs and 8 NICs of 400 Gb/s: round figures for such machines.
Cluster usual_cluster() {
  return {.racks = 1,
          .hosts_per_rack = 1 << 17,
          .ranks_per_host = 8,
          .nics_per_host = 8,
          .local = {450e9, 1500, 200, 0},
          .nic = {50e9, 3000, 500, 0},
          .links = {.rdma = true}};
}

Result<Cluster> wanted_cluster(const std::string& path) {
  if (path.empty()) return usual_cluster();
  return read_cluster(path);
}

// "64", or "8..512".
Result<void> parse_ranks(Settings* settings) {
  constexpr int kMostRanks = 1 << 20;
  Training& training = settings->training;
  if (settings->range.empty()) return {};
  char rest = 0;
  // At most as many digits as fit: of longer numbers sscanf takes the lower half.
  const int got = sscanf(settings->range.c_str(), "%7d..%7d%c", &training.least_ranks, &training.most_ranks, &rest);
  const bool is_number =
      settings->range.size() <= 7 && settings->range.find_first_not_of("0123456789") == std::string::npos;
  if (is_number) training.most_ranks = training.least_ranks;
  if ((got != 2 && !is_number) || training.least_ranks < 1 || training.most_ranks > kMostRanks ||
      training.least_ranks > training.most_ranks)
    return Error{Code::kInvalidUsage, "--ranks " + settings->range +
                                          ": give a number up to 1048576, or for ddp two of them, such as 8..512"};
  if (!is_number && settings->operation != kTraining)
    return Error{Code::kInvalidUsage, "--ranks " + settings->range + ": only ddp takes two numbers"};
  settings->ranks = training.least_ranks;
  return {};
}

// Without --ranks: as many ranks as the file has room for.
Result<Network> make_network(const Settings& settings) {
  TUTTI_TRY_ASSIGN(Cluster cluster, wanted_cluster(settings.topology));
  const int ranks = settings.ranks > 0          ? settings.ranks
                    : settings.topology.empty() ? cluster.ranks_per_host
                                                : cluster.capacity();
  if (ranks == 0)
    return Error{Code::kInvalidUsage, settings.topology + " does not say how many racks there are; give --ranks"};
  return Network::make(std::move(cluster), ranks);
}

Result<void> compare(Algo algo, Comparison* comparison) {
  const Planner planner = planner_of(comparison->network);
  const SimulatedOperation& of = comparison->of;
  const int n = comparison->network.n_ranks();
  constexpr uint64_t kMostSteps = 100'000'000;  // about five minutes; an algorithm that is asked for has no limit
  if (algo == Algo::kAuto) comparison->of.most_steps = kMostSteps;
  const Algo chosen = planner.choose(call_of(of, n, DataType::kFloat32), block_bytes(of, n));
  for (const Algo each : algorithms_of(planner, of, algo)) {
    Row row{each, {}, 0, each == chosen};
    auto outcome = run(comparison->network, of, each);
    if (!outcome && outcome.error().code == Code::kInvalidUsage && algo == Algo::kAuto) {
      fprintf(stderr, "%s: %s is left out: %s\n", kTool, algo_name(each), outcome.error().message.c_str());
      continue;
    }
    TUTTI_TRY_ASSIGN(row.outcome, std::move(outcome));
    row.planned_ns = price_ns(rank_cost_of(of.collective, each, block_bytes(of, n), planner.facts()), planner.facts(),
                              prices_of(comparison->network.cluster()));
    comparison->rows.push_back(std::move(row));
  }
  if (comparison->rows.empty())
    return Error{Code::kInvalidUsage, "nothing is left to show; give fewer --bytes or --ranks, or one --algorithm"};
  std::stable_sort(comparison->rows.begin(), comparison->rows.end(),
                   [](const Row& a, const Row& b) { return a.outcome.ns < b.outcome.ns; });
  return {};
}

Result<void> print(const std::string& text) {
  if (fwrite(text.data(), 1, text.size(), stdout) == text.size() && fflush(stdout) == 0) return {};
  return system_error("writing to stdout", errno);
}

Result<void> train(Settings settings) {
  Training& training = settings.training;
  training.json = settings.json;
  TUTTI_TRY_ASSIGN(const Cluster cluster, wanted_cluster(settings.topology));
  if (!(training.compute_ms > 0))
    return Error{Code::kInvalidUsage, "ddp needs --compute-ms: how long a rank computes in each step by itself"};
  if (training.model.empty())
    return Error{Code::kInvalidUsage,
                 "ddp needs --model: resnet50, bert_base, llama_7b or a file of 'name count' lines"};
  TUTTI_TRY_ASSIGN(const std::string text, training_report(cluster, training));
  return print(text);
}

Result<void> simulate(Settings settings) {
  TUTTI_TRY(parse_ranks(&settings));
  if (settings.operation == kTraining) return train(settings);
  const auto named = std::find_if(std::begin(kOperations), std::end(kOperations),
                                  [&](const Named& n) { return settings.operation == n.name; });
  TUTTI_TRY_ASSIGN(const uint64_t bytes, parse_bytes(settings.bytes));
  TUTTI_TRY_ASSIGN(const Algo algo, parse_algo(settings.algorithm));
  TUTTI_TRY_ASSIGN(const Network network, make_network(settings));
  // Before minutes of simulating.
  if (!settings.trace.empty())
    if (const auto may = check_writable(settings.trace); !may)
      return Error{may.error().code, "--trace " + may.error().message};
  Comparison comparison{
      settings.operation,
      {.collective = named->collective, .bytes = bytes, .traces = !settings.trace.empty(), .row = settings.row},
      network,
      {}};
  TUTTI_TRY(compare(algo, &comparison));
  TUTTI_TRY(print(settings.json ? to_json(comparison) : to_table(comparison)));
  return settings.trace.empty() ? Result<void>() : write_file(settings.trace, to_trace(comparison));
}

// An option that was given but would have no effect; null if there is none.
const char* misplaced(const CLI::App& app, bool trains) {
  for (const char* option : {"--bytes", "--row", "--algorithm", "--trace"})
    if (trains && app.count(option) > 0) return option;
  for (const char* option : {"--model", "--compute-ms", "--bucket-mb"})
    if (!trains && app.count(option) > 0) return option;
  return nullptr;
}

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app(
      "Predicts how long the library's own schedules take on hosts and networks that a file describes, without running "
      "them.",
      kTool);
  app.footer(kExamples);
  std::vector<std::string> names;
  for (const Named& named : kOperations) names.push_back(named.name);
  names.push_back(kTraining);
  app.add_option("operation", settings.operation, "what the ranks do")->required()->check(CLI::IsMember(names));
  app.add_option("--topology", settings.topology,
                 "the file that describes hosts and network; default: hosts of 8 GPUs and 8 NICs of 400 Gb/s");
  app.add_option("--ranks", settings.range,
                 "how many ranks; default: all that the topology has room for, without one and for ddp 8. For ddp also "
                 "a range such "
                 "as 8..512");
  app.add_option("--bytes", settings.bytes, "of a rank's larger buffer, such as 64K or 1G")->capture_default_str();
  app.add_option(
         "--row", settings.row,
         "run this many operations one after another, as perf tools do, and show what each after the first adds")
      ->check(CLI::Range(2, 1000));
  app.add_option("--algorithm", settings.algorithm, "only this one, by its name in TUTTI_ALGO; default: all that fit");
  app.add_flag("-J,--json", settings.json, "print JSON instead of a table");
  app.add_option("--trace", settings.trace, "write what each rank does in the fastest algorithm to this file");
  app.add_option("--model", settings.training.model,
                 "ddp, required: resnet50, bert_base, llama_7b, or a file of 'name count' lines");
  app.add_option("--compute-ms", settings.training.compute_ms,
                 "ddp, required: how long a rank computes in each step by itself");
  app.add_option("--bucket-mb", settings.training.bucket_mb, "ddp: size of a bucket, which may be a little more")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  if (const auto status = cli::parse(app, argc, argv, kTool)) return *status;
  if (const char* const option = misplaced(app, settings.operation == kTraining)) {
    fprintf(stderr, "%s: %s does not apply to %s; leave it out\n", kTool, option, settings.operation.c_str());
    return cli::kWrongUsage;
  }
  const auto done = simulate(settings);
  if (done) return 0;
  fprintf(stderr, "%s: %s\n", kTool, done.error().message.c_str());
  return done.error().code == Code::kInvalidUsage ? cli::kWrongUsage : 1;
}

}  // namespace
}  // namespace tutti::sim

int main(int argc, char** argv) {
  return tutti::sim::main(argc, argv);
}
