// The algorithms, by which collectives are done: how each builds its schedules, what those take, what it needs and
// which bits it gives. Each is described in the file that builds it, and has a row in algorithms.cpp; nothing else in
// the library lists them. Constant; any thread.
#pragma once

#include <algorithm>
#include <cassert>
#include <string_view>

#include "base/dtype.h"
#include "schedule/cost.h"
#include "schedule/schedule.h"

namespace tutti {

// The number of a row, from 1: it travels with every message. Only those have a name here that something asks for.
enum class Algo : uint8_t { kAuto = 0, kDirect = 1, kTree = 4, kRing = 5 };

// Among whom and for whom a schedule is built. `order`: of the ranks as they stand beside each other. `slow`: the ranks
// of hosts that should not send more than they have themselves.
struct Ranks {
  std::span<const int> order;
  std::span<const std::vector<int>> hosts, racks, slow;
  int rank = 0, root = 0;
  uint32_t lanes = 1;  // side by side: twice as many where they overlap
  int n() const { return static_cast<int>(order.size()); }
};
// Where the rank stands in a list, mostly at its own number.
inline int place_of(std::span<const int> order, int rank) {
  if (static_cast<size_t>(rank) < order.size() && order[static_cast<size_t>(rank)] == rank) return rank;
  const auto at = std::find(order.begin(), order.end(), rank);
  assert(at != order.end());
  return static_cast<int>(at - order.begin());
}
// A rank among those that stand beside each other.
struct InOrder {
  std::span<const int> ranks;
  int n, position;

  InOrder(std::span<const int> order, int rank)
      : ranks(order), n(static_cast<int>(order.size())), position(place_of(order, rank)) {}
  // The rank `distance` positions on, round the end.
  int at(int distance) const { return ranks[static_cast<size_t>((position + distance + n) % n)]; }
};
// A chunk in the input or the output.
inline Slice input_of(uint32_t chunk) {
  return {Buffer::kInput, chunk};
}
inline Slice output_of(uint32_t chunk) {
  return {Buffer::kOutput, chunk};
}
inline Schedule with_lane(Schedule schedule, Steps steps) {
  schedule.add_lane(0, std::move(steps));
  return schedule;
}
// To be added up by one rank for each chunk and sent to the root, or to all: see direct.cpp.
Schedule two_shots(const Ranks& r, uint32_t n_chunks, int root = -1);
// All-gather and reduce-scatter of logarithmic depth: see doubling.cpp.
Schedule circulant_all_gather(const Ranks& r);
Schedule circulant_reduce_scatter(const Ranks& r);

// To do one collective. Two slots are enough for each schedule.
struct Method {
  Schedule (*build)(const Ranks& ranks) = nullptr;  // null: there is no such way
  Cost (*cost)(const Workload& workload) = nullptr;
  bool overlaps = false;  // with more lanes, one has something to do while another one waits for its hops
};

struct Algorithm {
  const char* name;  // as in TUTTI_ALGO
  Method all_reduce = {}, broadcast = {}, reduce = {}, all_gather = {}, reduce_scatter = {};
  Algo otherwise = Algo::kAuto;    // does the collectives that this one has no way to do
  bool keeps_rank_order = false;   // in sums, whatever the size
  bool meets_all = false;          // a rank has links with all the others
  int least_ranks = 2;             // below that another one is the same
  bool is_for_full_hosts = false;  // several, with several ranks each
  bool is_for_racks = false;       // several

  const Method& method(Collective collective) const;
};

std::span<const Algorithm* const> algorithms();
const Algorithm* algorithm_of(Algo algo);         // null: kAuto, or a number without a row
const char* algo_name(Algo algo);                 // "auto"
Algo algo_named(std::string_view name);           // kAuto: none
Algo own_algo(Collective collective, Algo algo);  // who does it in the end; kAuto: the collective has no algorithms

}  // namespace tutti
