// plan: which algorithm an operation takes, and with how many lanes. All ranks of a group decide alike, because they
// decide from the call, from what rank 0 told them all at creation, and from times that they have agreed on since. A
// Planner belongs to one thread at a time; it talks to nobody: the communicator measures and agrees for it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "debug/call.h"
#include "plan/cost.h"
#include "plan/race.h"
#include "plan/tuning.h"
#include "schedule/schedule.h"
#include "topology/layout.h"

namespace tutti {

Result<Algo> parse_algo(const std::string& name);  // "" is kAuto; kInvalidUsage lists the names

struct Candidate {
  Plan plan;
  double predicted_ns = 0;
  int64_t measured_ns = 0;  // 0: was not
};

// What is decided for operations of one size class.
struct Choice {
  enum class Why {
    kOnlyWay,     // the collective has no other
    kPredicted,   // the others are far behind on paper
    kNotTried,    // as above, for races are off or have yet to begin
    kRacing,      // tried out by turns now
    kRaced,       // the fastest of a race
    kRemembered,  // of an earlier communicator's race
  };
  std::vector<Candidate> candidates;  // by predicted time
  Plan plan;
  Why why = Why::kOnlyWay;
  std::optional<Race> race;
  bool never_lends = false;  // TUTTI_PROTO
  // Its root need not wait for anybody: a turn in a race ends when all ranks have, or what its plan costs would count
  // for the next one's.
  bool runs_ahead = false;

  // Untried, registered memory is lent: that is no copy at all.
  Lending lending() const {
    const bool tried = why == Why::kRacing || why == Why::kRaced || why == Why::kRemembered;
    return plan.lends ? Lending::kAll : tried || never_lends ? Lending::kNothing : Lending::kRegistered;
  }
  // Of a race: who won it in what time, after how many operations it is looked at again, and how many looks in a row
  // found that it takes another time now, as when a virtual machine's CPUs have been moved.
  Measured won;
  bool registered = false;  // its memory
  int64_t operations_left = INT64_MAX;
  int doubts = 0;
  int64_t patience = 0;  // operations between looks, by how many a look takes
};

// How bytes may take a link (TUTTI_PROTO).
enum class Ways : uint8_t { kBoth, kCopy, kLend };
// "" is kBoth; kInvalidUsage lists the names.
Result<Ways> parse_ways(const std::string& name);
const char* ways_name(Ways ways);

class Planner {
 public:
  // `forced` other than kAuto is taken whatever the size, but for sums that are to be made in one place: those of 16-
  // and 8-bit floats, to be rounded once, and in deterministic groups all, to be added up in the order of ranks.
  Planner(int rank, Layout layout, Algo forced, bool deterministic);

  // From rank 0, once, before anything is chosen. `races`: plans that are close on paper are tried out.
  void start(const Ground& ground, Tuning tuning, bool races, Ways ways = Ways::kBoth);

  // The choice for a call, which need not have an algorithm yet; `bytes` as for load_of. It stays where it is until
  // take_prices().
  Choice& choice(const Call& call, uint64_t bytes);
  Plan choose(const Call& call) { return choice(call, call.count * dtype_bytes(call.dtype)).plan; }

  // True once: prices are to be measured now, with a race about to begin.
  bool wants_prices(const Choice& choice);
  void take_prices(const Prices& prices);
  // For every operation of a choice without a race.
  void count(Choice& choice) const {
    if (--choice.operations_left < 0) look_again(choice);
  }
  // For a choice that has a race: the plan of this operation and operations_left more; record() follows each of them.
  void begin_turn(Choice& choice);
  void record(Choice& choice, const Call& call, uint64_t bytes, int64_t ns, bool registered);
  // What all ranks have agreed on after a round.
  void end_round(Choice& choice, const Call& call, uint64_t bytes, const Race::News& agreed);

  const Layout& layout() const { return layout_; }
  size_t hosts() const { return layout_.hosts.size(); }
  const Ground& ground() const { return ground_; }
  const Tuning& tuning() const { return tuning_; }
  Algo forced() const { return forced_; }
  Ways ways() const { return ways_; }
  bool has_news() const { return has_news_; }  // in the tuning, since start

  Schedule schedule(Collective collective, Plan plan, int root) const;
  // Ranks that any algorithm without a root exchanges messages with: connected from the start.
  std::vector<int> neighbours() const;
  // How long a call should take: as measured where it was, else on paper.
  double estimate_ns(const Call& call, uint64_t bytes);
  // The same for messages of so many bytes each to (or from) these ranks, all at once.
  struct Transfer {
    int peer;
    bool sends;
    uint64_t bytes;
  };
  double estimate_ns(std::span<const Transfer> transfers) const;
  // For people: what is taken for the call, and why.
  std::string explain(const Call& call, uint64_t bytes);

 private:
  bool sums_in_one_place(const Call& call) const;
  SizeClass class_of(const Call& call, uint64_t bytes) const;
  std::vector<Plan> plans_for(const Call& call, uint64_t bytes) const;
  std::vector<Plan> algorithms_for(const Call& call) const;
  std::vector<Plan> forced_plan(const Call& call, uint64_t bytes) const;
  Choice decide(const Call& call, uint64_t bytes) const;
  void look_again(Choice& choice) const;
  void end_look(Choice& choice, SizeClass size_class) const;
  bool recall(Choice& choice, SizeClass size_class, bool registered) const;
  void start_race(Choice& choice, double expected_ns) const;
  bool take_results(Choice& choice, std::span<const Measured> results, Choice::Why why) const;
  double predict(Collective collective, Plan plan, uint64_t bytes) const;

  int rank_;
  int n_ranks_;
  Layout layout_;
  Algo forced_;
  bool deterministic_;
  Ground ground_;
  Tuning tuning_;
  Ways ways_ = Ways::kBoth;
  bool races_ = false, has_news_ = false;
  int waited_ = 0;  // operations that could have raced
  std::map<SizeClass, Choice> choices_;
};

}  // namespace tutti
