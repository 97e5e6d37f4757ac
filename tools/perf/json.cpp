#include "json.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "types.h"

extern char** environ;

namespace tutti::perf {
namespace {

using Json = nlohmann::ordered_json;

// nccl-tests writes booleans as text.
const char* truth(bool value) {
  return value ? "true" : "false";
}

// Only Tutti's variables, and never the secret.
Json environment() {
  Json list = Json::array();
  for (char** e = environ; *e != nullptr; e++) {
    if (strncmp(*e, "TUTTI_", 6) == 0 && strncmp(*e, "TUTTI_SECRET=", 13) != 0) list.push_back(*e);
  }
  return list;
}

Json config(const Options& o, const std::vector<RankInfo>& ranks) {
  Json j = {{"nthreads", o.threads},
            {"ngpus", 1},
            {"nprocs", o.procs},
            {"nranks", ranks.size()},
            {"minimum_bytes", o.min_bytes},
            {"maximum_bytes", o.max_bytes}};
  if (o.step_factor > 1) {
    j["step_factor"] = o.step_factor;
  } else {
    j["step_bytes"] = o.step_bytes;
  }
  j.update({{"warmup_iters", o.warmup_iters},
            {"iterations", o.iters},
            {"aggregated_iterations", o.agg_iters},
            {"validation", o.check_iters},
            {"graph", o.graph_launches},
            {"blocking_collectives", truth(o.blocking != 0)},
            {"per_iter_timing", truth(o.per_iter_timing)},
            {"per_iter_skip", o.per_iter_skip},
            {"parallel_init", truth(o.parallel_init)},
            {"algo", o.algo},
            {"transports", o.transports},
            {"sizes_from", o.sizes_from}});
  j["devices"] = Json::array();
  for (size_t rank = 0; rank < ranks.size(); rank++) {
    j["devices"].push_back({{"rank", rank},
                            {"group", 0},
                            {"pid", ranks[rank].pid},
                            {"hostname", ranks[rank].host},
                            {"device", std::max(0, ranks[rank].device)},
                            {"device_hex", ranks[rank].device < 0 ? "host" : "cuda"},
                            {"device_info", ranks[rank].device_name}});
  }
  return j;
}

Json measurement(const JsonReport& report, const Measurement& m) {
  const bool cpu_time = report.options.cpu_time, has_data = report.collective.has_data;
  Json j;
  j[cpu_time ? "cpu_time" : "time"] = (cpu_time ? m.cpu_seconds : m.seconds) * 1e6;
  j["alg_bw"] = has_data ? Json(m.alg_bw) : Json();
  j["bus_bw"] = has_data ? Json(m.bus_bw) : Json();
  j["nwrong"] = m.wrong < 0 ? Json() : Json(m.wrong);
  return j;
}

// For each process and iteration the slowest of its ranks, which are consecutive.
Json process_times(const std::vector<RankInfo>& ranks, const Measurement& m) {
  Json rows = Json::array();
  for (size_t rank = 0; rank < m.rank_iter_seconds.size(); rank++) {
    const bool first = rank == 0 || ranks[rank].pid != ranks[rank - 1].pid || ranks[rank].host != ranks[rank - 1].host;
    if (first) rows.push_back(std::vector<double>(m.iter_seconds.size(), 0));
    for (size_t i = 0; i < m.iter_seconds.size(); i++) {
      Json& slowest = rows.back()[i];
      slowest = std::max(slowest.get<double>(), m.rank_iter_seconds[rank][i] * 1e6);
    }
  }
  return rows;
}

Json iterations(const JsonReport& report, const Measurement& m) {
  const Options& o = report.options;
  const IterStats s = iter_stats(m.iter_seconds, static_cast<size_t>(o.per_iter_skip));
  Json j = {{"skipped_iterations", o.per_iter_skip},
            {"min_us", s.min * 1e6},
            {"max_us", s.max * 1e6},
            {"avg_us", s.average * 1e6},
            {"p50_us", s.p50 * 1e6},
            {"p95_us", s.p95 * 1e6},
            {"p99_us", s.p99 * 1e6},
            {"stdev_us", s.deviation * 1e6},
            {"cv_pct", s.average > 0 ? 100 * s.deviation / s.average : 0}};
  j["times_us"] = Json::array();
  for (double seconds : m.iter_seconds) j["times_us"].push_back(seconds * 1e6);
  Json processes = process_times(report.ranks, m);
  if (processes.size() > 1) j["per_process_max_times_us"] = std::move(processes);
  return j;
}

Json result(const JsonReport& report, const Row& row) {
  Json j = {{"size", row.bytes},
            {"count", row.count},
            {"type", type_name(report.collective, row)},
            {"redop", op_name(report.collective, row)},
            {"root", text("%6d", row.root)}};  // as wide as in the table
  j["out_of_place"] = measurement(report, row.out_of_place);
  if (!row.out_of_place.iter_seconds.empty()) {
    j["out_of_place_per_iter"] = iterations(report, row.out_of_place);
  }
  j["in_place"] = row.in_place ? measurement(report, *row.in_place) : Json();
  if (row.in_place && !row.in_place->iter_seconds.empty()) {
    j["in_place_per_iter"] = iterations(report, *row.in_place);
  }
  j["actual_iterations"] = report.options.iters;
  j["experiment_name"] = report.options.sizes_from;
  return j;
}

}  // namespace

IterStats iter_stats(const std::vector<double>& seconds, size_t skip) {
  std::vector<double> sorted(seconds.begin() + static_cast<std::ptrdiff_t>(skip), seconds.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t n = sorted.size();
  const auto percentile = [&](size_t p) { return sorted[std::min(n - 1, (n * p + 99) / 100 - 1)]; };
  double sum = 0, squares = 0;
  for (double s : sorted) sum += s;
  const double average = sum / static_cast<double>(n);
  for (double s : sorted) squares += (s - average) * (s - average);
  return {.min = sorted.front(),
          .max = sorted.back(),
          .average = average,
          .p50 = sorted[n / 2],
          .p95 = percentile(95),
          .p99 = percentile(99),
          .deviation = std::sqrt(squares / static_cast<double>(n))};
}

std::string json_text(const JsonReport& report) {
  Json j = {{"version", 1},
            {"start_time", report.start_time},
            {"args", report.options.args},
            {"env", environment()},
            {"tutti_version", TUTTI_VERSION_CODE},
            {"config", config(report.options, report.ranks)},
            {"results", Json::array()}};
  for (const Row& row : report.rows) j["results"].push_back(result(report, row));
  j["out_of_bounds"] = {{"count", report.totals.wrong}, {"okay", truth(report.totals.wrong == 0)}};
  const Json bandwidth = report.collective.has_data ? Json(report.totals.average_bus_bw()) : Json();
  j["average_bus_bandwidth"] = {{"bandwidth", bandwidth}, {"okay", "unchecked"}};
  j["errors"] = Json::array();
  if (!report.error.empty()) j["errors"].push_back(report.error);
  j["end_time"] = report.end_time;
  // Arguments may be in any encoding; invalid UTF-8 is replaced instead of throwing.
  return j.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tutti::perf
