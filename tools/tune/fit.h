// Prices that explain measurements, and how good the planner's choices are with given prices. Pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/prices.h"
#include "samples.h"

namespace tutti::tune {

// The prices that explain the samples best, in relative terms (least squares, none negative, one price after the other
// until they converge). A price that the samples say little about stays near `guess`; `fitted` receives the names of
// the others.
Prices fit(std::span<const Sample> samples, const Prices& guess, std::vector<std::string>* fitted);

// One operation that was measured with several algorithms: the planner's choice with these prices, and its regret: how
// much longer it took than the fastest one. If ranks share memory that is the fastest of those that add up in the order
// of ranks, as tutti.h promises; the cost of that promise is reported separately.
struct Point {
  Sample chosen;
  double best_ns = 0;
  double any_order_ns = 0;
  double predicted_ns = 0;  // of the chosen algorithm
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
