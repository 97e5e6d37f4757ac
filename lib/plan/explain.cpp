// Planner: what it has decided, for people, and how long that takes.
#include <algorithm>

#include "plan/planner.h"

namespace tutti {
namespace {

std::string why_text(const Choice& choice) {
  switch (choice.why) {
    case Choice::Why::kOnlyWay: return "there is one way only";
    case Choice::Why::kPredicted: return "predicted to be fastest by far";
    case Choice::Why::kNotTried: return "predicted to be fastest; the closest are not tried out yet, or not at all";
    case Choice::Why::kRacing: return "the closest are being tried out by turns";
    case Choice::Why::kRaced: return "the fastest when the closest were tried out";
    case Choice::Why::kRemembered: return "the fastest when an earlier communicator tried them out";
  }
  return "";
}

std::string plan_text(Plan plan) {
  return format("%s%s%s", algo_name(plan.algo), plan.lanes > 1 ? " x2" : "", plan.lends ? ", lending" : "");
}

std::string prices_text(const Tuning& tuning) {
  const Prices& p = tuning.prices;
  return format("prices (%s): a hop %.2f us, a message %.2f us, a byte copied %.3f ns, a byte added up %.3f ns\n",
                tuning.probed ? "fitted to measurements" : "assumed", p.hop / 1e3, p.message / 1e3, p.copied_byte,
                p.summed_byte);
}

std::string table(const Choice& choice) {
  std::string text = "  plan                   predicted us  measured us\n";
  for (const Candidate& c : choice.candidates) {
    const std::string measured = c.measured_ns > 0 ? format("%.2f", static_cast<double>(c.measured_ns) / 1e3) : "-";
    text += format("%s %-21s  %12.2f  %11s\n", c.plan == choice.plan ? "*" : " ", plan_text(c.plan).c_str(),
                   c.predicted_ns / 1e3, measured.c_str());
  }
  return text;
}

bool share_a_host(const Layout& layout, int a, int b) {
  const auto has = [](const std::vector<int>& ranks, int r) {
    return std::find(ranks.begin(), ranks.end(), r) != ranks.end();
  };
  return std::any_of(layout.hosts.begin(), layout.hosts.end(),
                     [&](const std::vector<int>& ranks) { return has(ranks, a) && has(ranks, b); });
}

}  // namespace

double Planner::estimate_ns(const Call& call, uint64_t bytes) {
  const Choice& decided = choice(call, bytes);
  const double predicted = predict(call.collective, decided.plan, bytes);
  for (const Candidate& c : decided.candidates)
    if (c.plan == decided.plan && c.measured_ns > 0)  // of the class's typical size
      return static_cast<double>(c.measured_ns) * predicted / c.predicted_ns;
  return predicted;
}

double Planner::estimate_ns(std::span<const Transfer> transfers) const {
  Traffic traffic;
  for (const Transfer& t : transfers) {
    traffic.copied_bytes += t.bytes;
    if (t.peer == rank_) continue;
    traffic.messages += std::max<uint64_t>(1, t.bytes / ground_.slot_bytes);
    if (t.sends && !share_a_host(layout_, rank_, t.peer)) traffic.wired_bytes += t.bytes;
  }
  return price_of(load_of(traffic, ground_), tuning_.prices);
}

std::string Planner::explain(const Call& call, uint64_t bytes) {
  const Choice& decided = choice(call, bytes);
  const CollectiveTraits& what = traits(call.collective);
  std::string text = format("%s of %llu bytes", what.name, static_cast<unsigned long long>(bytes));
  if (what.moves_data)
    text += format(" (%llu x %s", static_cast<unsigned long long>(call.count), dtype_name(call.dtype));
  if (what.reduces) text += format(", %s", red_op_name(call.op));
  text += format("%s over %d ranks: %s, %s\n", what.moves_data ? ")" : "", n_ranks_, plan_text(decided.plan).c_str(),
                 why_text(decided).c_str());
  if (forced_ != Algo::kAuto && decided.plan.algo == forced_)
    text += format("forced: %s, by TUTTI_ALGO or the configuration\n", algo_name(forced_));
  if (ways_ != Ways::kBoth) text += format("forced: %s, by TUTTI_PROTO\n", ways_name(ways_));
  if (sums_in_one_place(call))
    text += deterministic_ ? "deterministic: only plans that add up in the order of ranks, in one place\n"
                           : "a small float: only plans that add up in one place and round once\n";
  if (ground_.crowding() > 1)
    text += format("%d ranks share %d CPUs on the fullest host\n", ground_.ranks_here, ground_.cpus_here);
  return text + table(decided) + prices_text(tuning_);
}

}  // namespace tutti
