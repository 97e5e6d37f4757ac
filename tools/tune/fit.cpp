#include "fit.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "plan/planner.h"

namespace tutti::tune {
namespace {

// A guess counts as a weak sample of each price.
constexpr double kGuessWeight = 0.001;
constexpr int kTurns = 1000;

// A sample's work as a sum over prices: `amounts[p]` times each price, and a rest that depends on no price.
struct Equation {
  std::vector<double> amounts;
  double rest_ns = 0, work_ns = 0;
  double weight = 0;  // relative change of the measured time per nanosecond of work
};

Equation equation_of(const Sample& sample) {
  const RankCost cost = rank_cost_of(sample.collective, sample.algo, sample.bytes, sample.facts);
  Prices prices;
  const std::vector<NamedPrice> names = by_name(prices);
  const double wire = wire_ns(cost, sample.facts), beyond_wire = std::max(0.0, sample.ns - wire) / kOneByOne;
  const bool works_longer = beyond_wire > wire;
  Equation equation{{},
                    work_ns(cost, sample.facts, prices),
                    works_longer ? sample.ns - wire * kOneByOne : beyond_wire,
                    (works_longer ? 1 : kOneByOne) / sample.ns};
  for (const NamedPrice& price : names) {
    *price.value = 1;
    equation.amounts.push_back(work_ns(cost, sample.facts, prices) - equation.rest_ns);
    *price.value = 0;
  }
  return equation;
}

// Price `p` with the least square errors, given the other prices.
double best_price(const std::vector<Equation>& equations, const std::vector<NamedPrice>& prices, size_t p,
                  double guess) {
  double square = kGuessWeight / (guess * guess), line = kGuessWeight / guess;
  for (const Equation& e : equations) {
    if (e.amounts[p] == 0) continue;
    double rest = e.work_ns - e.rest_ns;
    for (size_t q = 0; q < prices.size(); q++)
      if (q != p) rest -= e.amounts[q] * *prices[q].value;
    const double amount = e.amounts[p] * e.weight;
    square += amount * amount;
    line += amount * rest * e.weight;
  }
  return std::max(line / square, guess / 1000);
}

Planner planner_of(const Facts& facts, const Prices& prices) {
  std::vector<RankLocation> locations(static_cast<size_t>(facts.n_ranks));
  for (int r = 0; r < facts.n_ranks; r++) {
    const int host = std::min(r / facts.largest_host, facts.hosts - 1);
    memcpy(locations[static_cast<size_t>(r)].host.bytes, &host, sizeof host);
  }
  return {0, lay_out(locations), Algo::kAuto, false, facts, {prices, "", {}}};
}

using Measured = std::vector<const Sample*>;

const Sample* find(const Measured& measured, Algo algo) {
  const auto found = std::find_if(measured.begin(), measured.end(), [&](const Sample* s) { return s->algo == algo; });
  return found == measured.end() ? nullptr : *found;
}

// Outside shared memory one fixed order is promised, and which one is the planner's choice.
bool gives_promised_result(const Sample& sample, std::span<const Candidate> candidates) {
  const auto is_it = [&](const Candidate& c) { return own_algo(sample.collective, c.algo) == sample.algo; };
  return !sample.facts.all_share_memory() || candidates.size() == 1 ||
         std::any_of(candidates.begin(), candidates.end(), is_it);
}

}  // namespace

Prices fit(std::span<const Sample> samples, const Prices& guess, std::vector<std::string>* fitted) {
  std::vector<Equation> equations;
  for (const Sample& sample : samples)
    if (!sample.is_free) equations.push_back(equation_of(sample));
  Prices first = guess, prices = guess;
  const std::vector<NamedPrice> guesses = by_name(first), names = by_name(prices);
  for (int turn = 0; turn < kTurns; turn++)
    for (size_t p = 0; p < names.size(); p++) *names[p].value = best_price(equations, names, p, *guesses[p].value);
  for (size_t p = 0; p < names.size(); p++)
    if (std::any_of(equations.begin(), equations.end(), [p](const Equation& e) { return e.amounts[p] > 0; }))
      fitted->push_back(names[p].name);
  return prices;
}

std::vector<Point> judge(std::span<const Sample> samples, const Prices& prices) {
  std::map<std::tuple<std::string, Collective, uint64_t>, Measured> by_operation;
  for (const Sample& s : samples)
    if (!s.is_free) by_operation[{to_text(s.facts), s.collective, s.bytes}].push_back(&s);
  std::vector<Point> points;
  for (const auto& [key, measured] : by_operation) {
    const Sample& any = *measured[0];
    Call call;
    call.collective = any.collective;
    call.dtype = DataType::kFloat32;
    call.count = any.bytes / sizeof(float);
    const std::vector<Candidate> candidates = planner_of(any.facts, prices).candidates(call, any.bytes);
    const Algo algo = candidates[0].algo;
    const Sample* chosen = find(measured, algo);
    if (chosen == nullptr) chosen = find(measured, own_algo(any.collective, algo));
    if (chosen == nullptr) continue;
    double best_ns = chosen->ns, any_order_ns = chosen->ns;
    for (const Sample* s : measured) {
      any_order_ns = std::min(any_order_ns, s->ns);
      if (gives_promised_result(*s, candidates)) best_ns = std::min(best_ns, s->ns);
    }
    const RankCost cost = rank_cost_of(any.collective, chosen->algo, any.bytes, any.facts);
    points.push_back({*chosen, best_ns, any_order_ns, price_ns(cost, any.facts, prices)});
  }
  return points;
}

Verdict verdict_of(std::span<const Point> points) {
  Verdict verdict;
  std::vector<double> errors;
  for (const Point& point : points) {
    verdict.points++;
    verdict.mean_regret += point.regret() / static_cast<double>(points.size());
    if (verdict.points == 1 || point.regret() > verdict.worst_regret) {
      verdict.worst_regret = point.regret();
      verdict.worst = point;
    }
    if (verdict.points == 1 || point.order_costs() > verdict.dearest_order.order_costs()) verdict.dearest_order = point;
    errors.push_back(point.error());
  }
  if (!errors.empty()) verdict.median_error = median(std::move(errors));
  return verdict;
}

std::string to_text(const Verdict& v) {
  if (v.points == 0) return "nothing was measured";
  const Point& dearest = v.dearest_order;
  const std::string order =
      dearest.order_costs() <= 0
          ? ""
          : perf::text("; the order of ranks costs %.0f %% at most (%s of %llu bytes)", 100 * dearest.order_costs(),
                       traits(dearest.chosen.collective).name, static_cast<unsigned long long>(dearest.chosen.bytes));
  return perf::text(
      "regret %.1f %% in the mean, %.0f %% at worst (%s of %llu bytes by %s: %.2f us, %.2f at best); "
      "predictions are off by %.0f %% in the median%s",
      100 * v.mean_regret, 100 * v.worst_regret, traits(v.worst.chosen.collective).name,
      static_cast<unsigned long long>(v.worst.chosen.bytes), algo_name(v.worst.chosen.algo), v.worst.chosen.ns / 1e3,
      v.worst.best_ns / 1e3, 100 * v.median_error, order.c_str());
}

}  // namespace tutti::tune
