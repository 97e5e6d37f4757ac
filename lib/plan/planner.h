// plan: which algorithm an operation takes, and how many lanes: a pure function of the call, of what all ranks know
// about each other since the group has formed, and of prices. Nothing is measured while the user's operations run, so
// all ranks decide alike, and alike in every run. Immutable; any thread.
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

// Enters what the layout says about hosts, racks and their speeds.
void add_network(const Layout& layout, Facts* facts);

struct Candidate {
  Algo algo = Algo::kAuto;
  double predicted_ns = 0;
};

class Planner {
 public:
  // `forced`, if not kAuto, is taken whatever the size, unless it does not keep the order of ranks and the call's sums
  // need it: those of 16- and 8-bit floats, to be rounded once, and in deterministic groups all. Without facts and
  // prices it knows schedules, but no choice or estimate means anything.
  Planner(int rank, Layout layout, Algo forced, bool deterministic, const Facts& facts = {}, PriceList prices = {});

  // `bytes` as for rank_cost_of.
  Algo choose(const Call& call, uint64_t bytes) const { return candidates(call, bytes)[0].algo; }
  Algo choose(const Call& call) const { return choose(call, call.count * dtype_bytes(call.dtype)); }
  // Whether the algorithm chosen for the call sums small floats in several steps: then partial sums are 32-bit floats,
  // so that the result is still rounded only once.
  bool adds_wide(const Call& call) const;
  // All algorithms that give the result promised for the call, fastest predicted first: choose() takes the first.
  std::vector<Candidate> candidates(const Call& call, uint64_t bytes) const;

  const Layout& layout() const { return layout_; }
  const Facts& facts() const { return facts_; }

  Schedule schedule(Collective collective, Algo algo, int root, uint32_t n_lanes = 1) const {
    return schedule_of(rank_, collective, algo, root, n_lanes);
  }
  // Another rank's schedule.
  Schedule schedule_of(int rank, Collective collective, Algo algo, int root, uint32_t n_lanes = 1) const;
  // The ranks that this one exchanges messages with in the ring and the tree: connected from the start.
  std::vector<int> neighbours() const;
  // How long a call should take.
  double estimate_ns(const Call& call, uint64_t bytes) const { return candidates(call, bytes)[0].predicted_ns; }
  // The same for messages of these sizes to or from these peers, all at once.
  struct Transfer {
    int peer;
    bool sends;
    uint64_t bytes;
  };
  double estimate_ns(std::span<const Transfer> transfers) const;
  // For people: the algorithm chosen for the call, and why.
  std::string explain(const Call& call, uint64_t bytes) const;

 private:
  enum class Order { kAny, kFixed, kRanks };  // the order in which a call's values are summed
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
  Layout layout_, sum_layout_;  // for operations that only move data, and for sums
  Algo forced_;
  bool deterministic_;
  Facts facts_;
  PriceList prices_;
};

}  // namespace tutti
