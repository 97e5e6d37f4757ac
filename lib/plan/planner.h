// plan: which algorithm an operation takes, and how many lanes: a pure function of the call, of what all ranks know of
// each other since the group has formed, and of prices. Nothing is measured while the user's operations run, so all
// ranks decide alike, and alike in every run. Immutable after set_facts(); any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "debug/call.h"
#include "plan/cost.h"
#include "plan/prices.h"
#include "schedule/schedule.h"
#include "topology/layout.h"

namespace tutti {

Result<Algo> parse_algo(const std::string& name);  // "" is kAuto; kInvalidUsage lists the names

// What the layout says of hosts, racks and their speeds.
void add_network(const Layout& layout, Facts* facts);

struct Candidate {
  Algo algo = Algo::kAuto;
  double predicted_ns = 0;
};

class Planner {
 public:
  // `forced` other than kAuto is taken whatever the size, but for sums that are to be made in the order of ranks: those
  // of 16- and 8-bit floats, to be rounded once, and in deterministic groups all.
  Planner(int rank, Layout layout, Algo forced, bool deterministic);

  // Once, before anything is chosen.
  void set_facts(const Facts& facts, PriceList prices);

  // `bytes` as for rank_cost_of.
  Algo choose(const Call& call, uint64_t bytes) const { return candidates(call, bytes)[0].algo; }
  Algo choose(const Call& call) const { return choose(call, call.count * dtype_bytes(call.dtype)); }
  // Whether by the algorithm that was chosen for it a sum of small floats takes several steps: then partial sums are
  // floats, so that it is rounded once all the same.
  bool adds_wide(const Call& call) const;
  // All algorithms that give the result which is promised for the call: the fastest on paper first, which choose()
  // takes.
  std::vector<Candidate> candidates(const Call& call, uint64_t bytes) const;

  const Layout& layout() const { return layout_; }
  const Facts& facts() const { return facts_; }

  Schedule schedule(Collective collective, Algo algo, int root, uint32_t n_lanes = 1) const {
    return schedule_of(rank_, collective, algo, root, n_lanes);
  }
  // Another rank's.
  Schedule schedule_of(int rank, Collective collective, Algo algo, int root, uint32_t n_lanes = 1) const;
  // Ranks that any algorithm without a root exchanges messages with: connected from the start.
  std::vector<int> neighbours() const;
  // How long a call should take.
  double estimate_ns(const Call& call, uint64_t bytes) const { return candidates(call, bytes)[0].predicted_ns; }
  // The same for messages of so many bytes each to (or from) these ranks, all at once.
  struct Transfer {
    int peer;
    bool sends;
    uint64_t bytes;
  };
  double estimate_ns(std::span<const Transfer> transfers) const;
  // For people: what is taken for the call, and why.
  std::string explain(const Call& call, uint64_t bytes) const;

 private:
  enum class Order { kAny, kFixed, kRanks };  // in which a call's values are added up
  Order order_of(const Call& call) const;
  std::vector<Algo> choices_for(const Call& call, uint64_t bytes) const;
  bool has_full_hosts() const { return layout_.hosts.size() > 1 && layout_.hosts.size() < layout_.order.size(); }
  bool chain_fits(const Call& call, Order order, bool is_few) const;
  std::vector<Algo> algorithms_for(const Call& call, Order order) const;
  std::vector<Candidate> priced(const Call& call, uint64_t bytes, std::span<const Algo> choices,
                                const Facts& facts) const;

  static Layout without_places(Layout layout);

  int rank_;
  int n_ranks_;
  Layout layout_, sum_layout_;  // the ranks' order for what is passed on, and for what is added up
  Algo forced_;
  bool deterministic_;
  Facts facts_;
  PriceList prices_;
};

}  // namespace tutti
