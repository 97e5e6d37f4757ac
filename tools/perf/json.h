// The report as JSON in the shape of nccl-tests' -J.
#pragma once

#include <string>
#include <vector>

#include "report.h"

namespace tutti::perf {

struct JsonReport {
  const Options& options;
  const Collective& collective;
  const std::vector<RankInfo>& ranks;
  const std::vector<Row>& rows;
  Totals totals;
  std::string start_time, end_time, error;
};

std::string json_text(const JsonReport& report);

struct IterStats {
  double min, max, average, p50, p95, p99, deviation;
};
IterStats iter_stats(const std::vector<double>& seconds, size_t skip);

}  // namespace tutti::perf
