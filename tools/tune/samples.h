// Measurements: how long operations take with each algorithm, and what is known about the group. Values.
#pragma once

#include <string>
#include <vector>

#include "../perf/status.h"
#include "plan/cost.h"

namespace tutti::tune {

struct Sample {
  Facts facts;
  Collective collective = Collective::kNone;
  uint64_t bytes = 0;  // as for rank_cost_of
  Algo algo = Algo::kAuto;
  bool is_free = false;  // the library's own choice, else forced
  double ns = 0;
};

std::string to_json(const std::vector<Sample>& samples);
double median(std::vector<double> values);  // of at least one value
double rounded(double value);               // to three digits, for files that people read
// One sample per operation: the median of its measurements, as from several jobs.
std::vector<Sample> medians(const std::vector<Sample>& samples);

perf::Status from_json(const std::string& text, const std::string& file, std::vector<Sample>* samples);

}  // namespace tutti::tune
