// tutti-sim's output: a table, JSON, a trace. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "tools/sim/compare.h"

namespace tutti::sim {

// One algorithm's time.
struct Row {
  Algo algo = Algo::kAuto;
  Outcome outcome;
  double planned_ns = 0;   // according to the cost model
  bool is_chosen = false;  // the library's choice for floats
};

struct Comparison {
  std::string operation;  // "all-reduce"
  SimulatedOperation of;
  const Network& network;
  std::vector<Row> rows;  // the fastest first
};

std::string to_table(const Comparison& comparison);
std::string to_json(const Comparison& comparison);
// Chrome's trace format, which Perfetto reads, too.
std::string to_trace(const Comparison& comparison);

}  // namespace tutti::sim
