#include "ddp.h"

#include <map>
#include <nlohmann/json.hpp>

#include "../perf/tensors.h"
#include "tools/sim/compare.h"
#include "tools/sim/training.h"

namespace tutti::sim {
namespace {

struct Scaling {
  int n_ranks;
  Algo algo = Algo::kAuto;  // of the largest bucket
  StepTime step;
};

Result<std::vector<Bucket>> buckets_of(const Training& training) {
  std::vector<perf::Tensor> tensors;
  if (const auto loaded = perf::load_tensors(training.model, &tensors); !loaded) {
    std::string message = loaded.error().message;
    const std::string their_option = "--sizes-from";
    if (message.rfind(their_option, 0) == 0) message.replace(0, their_option.size(), "--model");
    return Error{Code::kInvalidUsage, message};
  }
  std::vector<uint64_t> bytes;
  for (const perf::Tensor& tensor : tensors) bytes.push_back(tensor.count * sizeof(float));
  return bucket_up(bytes, static_cast<uint64_t>(training.bucket_mb * 1e6));
}

// With the algorithm that the library chooses for each bucket.
Result<Scaling> time_of(const Cluster& cluster, int n_ranks, std::span<const Bucket> buckets, double compute_ns) {
  TUTTI_TRY_ASSIGN(const Network network, Network::make(cluster, n_ranks));
  const Planner planner = planner_of(network);
  std::map<uint64_t, double> known;
  uint64_t largest = 0;
  Scaling row{n_ranks, {}, {}};
  const auto all_reduce_ns = [&](uint64_t bytes) -> Result<double> {
    if (const auto found = known.find(bytes); found != known.end()) return found->second;
    const SimulatedOperation operation{.bytes = bytes};
    const Algo algo = planner.choose(call_of(operation, n_ranks, DataType::kFloat32), bytes);
    if (bytes > largest) row.algo = algo;
    largest = std::max(largest, bytes);
    TUTTI_TRY_ASSIGN(const Outcome outcome, run(network, operation, algo));
    return known[bytes] = outcome.ns;
  };
  TUTTI_TRY_ASSIGN(row.step, step_time(buckets, compute_ns, all_reduce_ns));
  return row;
}

std::string to_text(const Training& training, std::span<const Bucket> buckets, std::span<const Scaling> rows) {
  uint64_t bytes = 0;
  for (const Bucket& bucket : buckets) bytes += bucket.bytes;
  std::string text =
      format("# %s: %.1f MB of gradients in %zu buckets of %g MB and more; %g ms to compute\n", training.model.c_str(),
             static_cast<double>(bytes) / 1e6, buckets.size(), training.bucket_mb, training.compute_ms);
  text += format("# %6s %11s %17s %11s  %s\n", "ranks", "step (ms)", "all-reduces (ms)", "efficiency", "algorithm");
  for (const Scaling& row : rows)
    text += format("  %6d %11.2f %17.2f %10.1f%%  %s\n", row.n_ranks, row.step.ns / 1e6, row.step.communicates_ns / 1e6,
                   100 * row.step.efficiency, algo_name(row.algo));
  return text;
}

std::string to_json(const Training& training, std::span<const Bucket> buckets, std::span<const Scaling> rows) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array(), sizes = Json::array();
  for (const Bucket& bucket : buckets) sizes.push_back(bucket.bytes);
  for (const Scaling& row : rows)
    list.push_back({{"ranks", row.n_ranks},
                    {"step_ms", row.step.ns / 1e6},
                    {"all_reduces_ms", row.step.communicates_ns / 1e6},
                    {"efficiency", row.step.efficiency},
                    {"algorithm", algo_name(row.algo)}});
  return Json{{"model", training.model}, {"compute_ms", training.compute_ms}, {"bucket_bytes", sizes}, {"rows", list}}
             .dump(2) +
         "\n";
}

}  // namespace

Result<std::string> training_report(const Cluster& cluster, const Training& training) {
  TUTTI_TRY_ASSIGN(const std::vector<Bucket> buckets, buckets_of(training));
  std::vector<Scaling> rows;
  for (int n = training.least_ranks; n <= training.most_ranks; n *= 2) {
    TUTTI_TRY_ASSIGN(Scaling row, time_of(cluster, n, buckets, training.compute_ms * 1e6));
    rows.push_back(row);
  }
  return training.json ? to_json(training, buckets, rows) : to_text(training, buckets, rows);
}

}  // namespace tutti::sim
