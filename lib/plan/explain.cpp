// Planner: its decisions explained for people, and estimated times.
#include <algorithm>

#include "plan/planner.h"

namespace tutti {
namespace {

std::string prices_text(PriceList list) {
  std::string text =
      "prices in ns, " + (list.file.empty() ? "built in:" : "* from " + list.file + ", others built in:");
  for (const NamedPrice& price : by_name(list.prices)) {
    const bool is_given = std::find(list.given.begin(), list.given.end(), price.name) != list.given.end();
    text += format(" %s%s %g", is_given ? "*" : "", price.name.c_str(), *price.value);
  }
  return text + "\n";
}

std::string table(const std::vector<Candidate>& candidates) {
  std::string text = "  algorithm              predicted us\n";
  for (const Candidate& c : candidates)
    text += format("%s %-21s  %12.2f\n", &c == &candidates[0] ? "*" : " ", algo_name(c.algo), c.predicted_ns / 1e3);
  return text;
}

}  // namespace

double Planner::estimate_ns(std::span<const Transfer> transfers) const {
  RankCost cost;
  for (const Transfer& t : transfers) {
    const bool is_here = layout_.host_of(t.peer) == layout_.host_of(rank_);
    const double bytes = static_cast<double>(t.bytes);
    Share& share = is_here ? cost.here : cost.wire;
    share.bytes += bytes;
    if (t.peer == rank_) continue;
    share.hops = 1;
    share.messages += static_cast<double>(1 + t.bytes / (128 << 10));
    if (t.sends && !is_here) cost.out_bytes += bytes;
  }
  for (Share* const share : {&cost.here, &cost.wire})
    for (double* const work : {&share->messages, &share->bytes}) *work *= facts_.machine.oversubscription();
  return price_ns(cost, facts_, prices_.prices);
}

std::string Planner::explain(const Call& call, uint64_t bytes) const {
  const std::vector<Candidate> all = candidates(call, bytes);
  const Algo algo = all[0].algo;
  const CollectiveTraits& what = traits(call.collective);
  std::string text = format("%s of %lu bytes", what.name, bytes);
  if (what.moves_data) text += format(" (%lu x %s", call.count, dtype_name(call.dtype));
  if (what.reduces) text += format(", %s", red_op_name(call.op));
  const char* const lanes = lanes_of(call.collective, algo, bytes, facts_) > 1 ? " in two lanes" : "";
  text += format("%s over %d ranks: %s%s, %s\n", what.moves_data ? ")" : "", n_ranks_, algo_name(algo), lanes,
                 all.size() == 1 ? "the only algorithm" : "predicted to be the fastest");
  if (forced_ != Algo::kAuto && algo == forced_)
    text += format("forced: %s, by TUTTI_ALGO or the configuration\n", algo_name(forced_));
  switch (order_of(call)) {
    case Order::kAny: break;
    case Order::kFixed: text += "order of the sums: fixed by the number of ranks, their hosts and the size\n"; break;
    case Order::kRanks: text += "order of the sums: rank order\n"; break;
  }
  return text + table(all) + to_text(facts_) + prices_text(prices_);
}

}  // namespace tutti
