// Prices that explain what was measured, and how good the planner's choices are with given prices. Pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/prices.h"
#include "samples.h"

namespace tutti::tune {

// The prices that explain the samples best, in relative terms (least squares, none negative, one price after the other
// until they rest). Where samples say little of one it stays near to `guess`; `fitted` receives the names of the
// others.
Prices fit(std::span<const Sample> samples, const Prices& guess, std::vector<std::string>* fitted);

// One operation that was measured by several algorithms: what the planner takes with these prices, and its regret: how
// much longer that took than the fastest. Where ranks share memory that is the fastest of those that add up in the
// order of ranks, as tutti.h promises; what the promise costs is told by itself.
struct Point {
  Sample chosen;
  double best_ns = 0;
  double any_order_ns = 0;
  double predicted_ns = 0;  // of the chosen one
  double regret() const { return chosen.ns / best_ns - 1; }
  double order_costs() const { return best_ns / any_order_ns - 1; }
  double error() const {
    return predicted_ns > chosen.ns ? predicted_ns / chosen.ns - 1 : chosen.ns / predicted_ns - 1;
  }
};
std::vector<Point> judge(std::span<const Sample> samples, const Prices& prices);

struct Verdict {
  size_t points = 0;
  double mean_regret = 0, worst_regret = 0, median_error = 0;
  Point worst;
  Point dearest_order;
};
Verdict verdict_of(std::span<const Point> points);
std::string to_text(const Verdict& verdict);

}  // namespace tutti::tune
