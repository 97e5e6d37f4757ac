// The algorithms that carry out collectives: how each builds its schedules, what those cost, what the algorithm
// requires and which bits it produces. Each is described in the file that builds it and has a row in algorithms.cpp;
// nothing else in the library lists them. Constant; any thread.
#pragma once

#include <algorithm>
#include <cassert>
#include <string_view>

#include "base/dtype.h"
#include "schedule/cost.h"
#include "schedule/schedule.h"

namespace tutti {

// An algorithm's row number, from 1, which travels with every message. Only rows that code refers to have a name here.
enum class Algo : uint8_t { kAuto = 0, kDirect = 1, kTree = 4, kRing = 5 };

// The ranks among which a schedule is built, and the rank it is for. `order`: the ranks in neighbour order. `slow`: the
// ranks of each host that is too slow to forward data of other hosts.
struct Ranks {
  std::span<const int> order;
  std::span<const std::vector<int>> hosts, racks, slow;
  int rank = 0, root = 0;
  uint32_t lanes = 1;  // concurrent ones: two where overlapping pays (Method::overlaps)
  int n() const { return static_cast<int>(order.size()); }
};
// The rank's index in `order`, mostly its own number.
inline int place_of(std::span<const int> order, int rank) {
  if (static_cast<size_t>(rank) < order.size() && order[static_cast<size_t>(rank)] == rank) return rank;
  const auto at = std::find(order.begin(), order.end(), rank);
  assert(at != order.end());
  return static_cast<int>(at - order.begin());
}
// A rank's position in the neighbour order.
struct InOrder {
  std::span<const int> ranks;
  int n, position;

  InOrder(std::span<const int> order, int rank)
      : ranks(order), n(static_cast<int>(order.size())), position(place_of(order, rank)) {}
  // The rank `distance` positions further, wrapping around.
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
// One rank adds up each chunk and sends the sum to the root, or to all (root -1): see direct.cpp.
Schedule two_shots(const Ranks& r, uint32_t n_chunks, int root = -1);
// All-gather and reduce-scatter of logarithmic depth: see doubling.cpp.
Schedule circulant_all_gather(const Ranks& r);
Schedule circulant_reduce_scatter(const Ranks& r);

// An algorithm's way to do one collective. Two slots are enough for every schedule.
struct Method {
  Schedule (*build)(const Ranks& ranks) = nullptr;  // null: the algorithm cannot do it
  Cost (*cost)(const Workload& workload) = nullptr;
  bool overlaps = false;  // with more lanes, one has work to do while another waits for its hops
};

struct Algorithm {
  const char* name;  // as in TUTTI_ALGO
  Method all_reduce = {}, broadcast = {}, reduce = {}, all_gather = {}, reduce_scatter = {};
  Algo otherwise = Algo::kAuto;    // does the collectives that this algorithm cannot
  bool keeps_rank_order = false;   // in sums, whatever the size
  bool meets_all = false;          // a rank has links with all the others
  int least_ranks = 2;             // with fewer, it is the same as another algorithm
  bool is_for_full_hosts = false;  // needs several hosts with several ranks each
  bool is_for_racks = false;       // needs several racks

  const Method& method(Collective collective) const;
};

std::span<const Algorithm* const> algorithms();
const Algorithm* algorithm_of(Algo algo);         // null: kAuto, or a number without a row
const char* algo_name(Algo algo);                 // "auto"
Algo algo_named(std::string_view name);           // kAuto: none
Algo own_algo(Collective collective, Algo algo);  // that does it in the end; kAuto: the collective has no algorithms

}  // namespace tutti
