#include <algorithm>
#include <cassert>

#include "schedule/algorithms.h"
#include "schedule/trips.h"

namespace tutti {
namespace {

using Hosts = std::span<const std::vector<int>>;

// Three phases for each group of chunks. Chunk (k, s) of a group is summed up on each host at the k-th of its ranks,
// and between the hosts at host s:
//
//   host A: a0 --> a1 --> a0     1. round each host: rank k gets the host's sum of the chunks (k, all s)
//            |      |            2. rails: the k-th ranks of all hosts make an all-reduce of the chunks (k, all s),
//   host B: b0 --> b1 --> b0        a ring, in which host s completes (k, s)
//                                3. round each host: everybody gets everything
//
// Every host has as many rails as the largest host has ranks; on smaller hosts, ranks take several rails in turn. Trips
// round a host begin with the chunks completed there, so that hosts that are alike do the same.
struct Place {
  Hosts hosts;
  int n_hosts, n_rails, host = -1;
  int n_here = 0, position = 0;  // on this host
  bool are_alike = true;         // all hosts have equally many ranks: then trips differ only in their chunks

  Place(Hosts all, int rank) : hosts(all), n_hosts(static_cast<int>(all.size())), n_rails(0) {
    for (int h = 0; h < n_hosts; h++) {
      const std::vector<int>& ranks = all[static_cast<size_t>(h)];
      are_alike = are_alike && ranks.size() == all[0].size();
      n_rails = std::max(n_rails, static_cast<int>(ranks.size()));
      const auto at = std::find(ranks.begin(), ranks.end(), rank);
      if (at == ranks.end()) continue;
      host = h;
      n_here = static_cast<int>(ranks.size());
      position = static_cast<int>(at - ranks.begin());
    }
    assert(host >= 0);
  }
  uint32_t n_chunks() const { return static_cast<uint32_t>(n_rails * n_hosts); }  // of a group
  // The rank at position `at`, wrapping around, of the host `by` hosts further on.
  int rank_at(int by, int at) const {
    const std::vector<int>& ranks = hosts[static_cast<size_t>((host + by + n_hosts) % n_hosts)];
    const int n = static_cast<int>(ranks.size());
    return ranks[static_cast<size_t>((at + n) % n)];
  }
};

struct Group {
  const Place& place;
  uint32_t first_chunk;
  Steps& steps;

  // Chunks move on by `by` hosts.
  Walk walk(int by) const {
    const auto hosts_on = static_cast<uint32_t>((by + place.n_hosts) % place.n_hosts);
    return {.stride = hosts_on * static_cast<uint32_t>(place.n_rails), .modulus = place.n_chunks()};
  }

  // A step of chunk (k, s).
  Step of_chunk(int k, int s, Step step, bool from_input, bool from_output, bool stores) const {
    step.chunk = first_chunk + static_cast<uint32_t>(s * place.n_rails + k);
    if (from_input) step.local = input_of(step.chunk);
    if (from_output) step.local = output_of(step.chunk);
    if (stores) step.store = output_of(step.chunk);
    return step;
  }

  // Trips round the host: each carries one chunk for each rank of the host, and a rank starts with the chunk for the
  // position `by` further on. The last trips may be short of rails. make(k, s, tick, step) makes the step for (k, s).
  template <class Make>
  void add_trips(int by, Make make) const {
    const int n = place.n_here, trips = (place.n_rails + n - 1) / n * place.n_hosts;
    const auto rail = [&](int trip, int tick) {
      return trip / place.n_hosts * n + (place.position + by - tick + 2 * n) % n;
    };
    const auto step = [&](int trip, int tick) {
      Step here;
      if (tick > 0) here.recv = place.rank_at(0, place.position - 1);
      if (tick < n - 1) here.send = place.rank_at(0, place.position + 1);
      return make(rail(trip, tick), (place.host + trip) % place.n_hosts, tick, here);
    };
    if (place.are_alike) return repeat_trips(steps, trips, n, walk(1), step);
    for_each_tick(0, trips, 1, n, [&](int trip, int tick) {
      if (rail(trip, tick) < place.n_rails) steps.push_back(step(trip, tick));
    });
  }

  void reduce_here() const {
    add_trips(-1, [&](int k, int s, int tick, Step step) {
      const bool is_last = tick == place.n_here - 1;
      step.completes = is_last && place.n_hosts == 1;
      return of_chunk(k, s, step, true, false, is_last);
    });
  }

  Step on_rail(int k, int tick) const {
    const int n = place.n_hosts;
    const bool alone = place.n_here == 1;  // then no sum of this host is stored
    Step step;
    if (tick > 0) step.recv = place.rank_at(-1, k);
    if (tick < 2 * n - 2) step.send = place.rank_at(1, k);
    step.completes = tick == n - 1;
    return of_chunk(k, (place.host - 1 - tick + 2 * n) % n, step, tick < n && alone, tick < n && !alone, tick >= n - 1);
  }

  void all_reduce_rails() const {
    const int n = place.n_hosts, k = place.position;
    if (place.are_alike)
      return repeat_ticks(steps, 0, n - 1, 2 * n - 2, walk(-1), [&](int tick) { return on_rail(k, tick); });
    for_each_tick(k, place.n_rails, place.n_here, 2 * n - 1,
                  [&](int rail, int tick) { steps.push_back(on_rail(rail, tick)); });
  }

  void gather_here() const {
    add_trips(0, [&](int k, int s, int tick, Step step) { return of_chunk(k, s, step, false, tick == 0, tick > 0); });
  }
};

// Each lane has its own group and channel. Two slots.
Schedule hierarchical_all_reduce(Hosts hosts, const Ranks& r) {
  const Place place(hosts, r.rank);
  const uint32_t n_lanes = 2 * r.lanes;  // chunks are as small as a round allows
  Schedule schedule{.rank = r.rank, .n_ranks = r.n(), .n_chunks = n_lanes * place.n_chunks()};
  schedule.alike = {place.n_here, {.stride = static_cast<uint32_t>(place.n_rails), .modulus = place.n_chunks()}};
  for (uint32_t lane = 0; lane < n_lanes; lane++) {
    Steps steps;
    const Group group{place, lane * place.n_chunks(), steps};
    if (place.n_here > 1 || place.n_hosts == 1) group.reduce_here();
    if (place.n_hosts > 1) group.all_reduce_rails();
    if (place.n_here > 1) group.gather_here();
    schedule.add_lane(lane, std::move(steps));
  }
  return schedule;
}

Cost hierarchical_cost(const Workload& b) {
  const double part = b.bytes / b.n, share = b.bytes / b.here, all = 2 * (b.here - 1 + b.hosts - 1),
               out = 2 * (b.hosts - 1);
  Cost e = b.hops(all * b.rounds(part), out * b.rounds(part));
  e.here = {b.each(4 * (b.here - 1) * b.messages_for(share / b.hosts, 2 * b.hosts * b.lanes)),
            b.each(2 * (b.here - 1) * share)};
  e.wire = {b.each(out * 2 * b.messages_for(part, 2 * b.lanes)), b.each(out * part)};
  e.summed = b.each(2 * b.others() * part);
  e.out = 2 * (b.machines - 1) / b.machines * b.bytes;
  return e;
}

// Racks take the place of hosts. A ring round a rack crosses a host's link once, rails cross it once for each of its
// ranks.
Cost racks_cost(const Workload& b) {
  const double part = b.bytes / b.n, share = b.bytes / b.rack, rounds = 2 * (b.rack - 1), out = 2 * (b.racks - 1);
  const double rounds_out = b.hosts == b.racks ? 0 : rounds / b.here;
  Cost e = b.hops((rounds + out) * b.rounds(part), (rounds_out + out) * b.rounds(part));
  b.to_next(e, b.each(2 * rounds * b.messages_for(share / b.racks, 2 * b.racks * b.lanes)), b.each(rounds * share),
            b.hosts / b.n);
  e.wire.messages += b.each(out * 2 * b.messages_for(part, 2 * b.lanes));
  e.wire.bytes += b.each(out * part);
  e.summed = b.each(2 * b.others() * part);
  e.out = b.hosts == b.racks ? out / b.racks * b.bytes : rounds * share + b.here * out * part;
  return e;
}

}  // namespace

extern const Algorithm kHierarchical = {
    .name = "hierarchical",
    .all_reduce = {[](const Ranks& r) { return hierarchical_all_reduce(r.hosts, r); }, hierarchical_cost, true},
    .otherwise = Algo::kRing,
    .is_for_full_hosts = true};
extern const Algorithm kRacks = {
    .name = "racks",
    .all_reduce = {[](const Ranks& r) { return hierarchical_all_reduce(r.racks, r); }, racks_cost, true},
    .otherwise = Algo::kRing,
    .is_for_racks = true};

}  // namespace tutti
