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
// A host has as many rails as the largest host has ranks. Where there are fewer ranks they take several in turn. What
// is done round a host begins with the chunks that end there, so that hosts that are alike do the same.
struct Place {
  Hosts hosts;
  int n_hosts, n_rails, host = -1;
  int n_here = 0, position = 0;  // on this host
  bool are_alike = true;         // the hosts: in how many ranks they have

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
  // Who stands at this position, counted round, on the host `by` hosts on.
  int rank_at(int by, int at) const {
    const std::vector<int>& ranks = hosts[static_cast<size_t>((host + by + n_hosts) % n_hosts)];
    const int n = static_cast<int>(ranks.size());
    return ranks[static_cast<size_t>((at + n) % n)];
  }
};

struct Group {
  const Place& place;
  uint32_t n_chunks, group;
  Steps& steps;

  uint32_t n_group_chunks() const { return static_cast<uint32_t>(place.n_rails * place.n_hosts); }
  // All its chunks exist, on hosts that are alike: then trips, and hosts, differ in their chunks alone.
  bool is_regular() const { return place.are_alike && (group + 1) * n_group_chunks() <= n_chunks; }
  // Chunks move by so many hosts.
  Walk walk(int by) const {
    const auto hosts_on = static_cast<uint32_t>((by + place.n_hosts) % place.n_hosts);
    return {.stride = hosts_on * static_cast<uint32_t>(place.n_rails), .modulus = n_group_chunks()};
  }

  // A step of chunk (k, s).
  Step of_chunk(int k, int s, Step step, bool from_input, bool from_output, bool stores) const {
    step.chunk = group * n_group_chunks() + static_cast<uint32_t>(s * place.n_rails + k);
    if (from_input) step.local = {Buffer::kInput, step.chunk};
    if (from_output) step.local = {Buffer::kOutput, step.chunk};
    if (stores) step.store = {Buffer::kOutput, step.chunk};
    if (k >= place.n_rails) step.chunk = n_chunks;
    return step;
  }
  // The last group may lack it, on all ranks.
  void add(const Step& step) const {
    if (step.chunk < n_chunks) steps.push_back(step);
  }

  // Trips round the host: each takes one chunk for every rank of it.
  int trips() const { return (place.n_rails + place.n_here - 1) / place.n_here * place.n_hosts; }
  int rail(int trip, int owner) const {
    const int n = place.n_here;
    return trip / place.n_hosts * n + (owner % n + n) % n;
  }
  int owner_host(int trip) const { return (place.host + trip) % place.n_hosts; }
  Step here(int tick, bool sends) const {
    Step step;
    if (tick > 0) step.recv = place.rank_at(0, place.position - 1);
    if (sends) step.send = place.rank_at(0, place.position + 1);
    return step;
  }
  template <class Make>
  void add_trips(Make make) const {
    if (is_regular()) return repeat_trips(steps, trips(), place.n_here, walk(1), make);
    for_each_tick(0, trips(), 1, place.n_here, [&](int trip, int first, int last) {
      for (int tick = first; tick <= last; tick++) add(make(trip, tick));
    });
  }

  void reduce_here() const {
    add_trips([&](int trip, int tick) {
      const bool is_last = tick == place.n_here - 1;
      Step step = here(tick, !is_last);
      step.completes = is_last && place.n_hosts == 1;
      return of_chunk(rail(trip, place.position - 1 - tick), owner_host(trip), step, true, false, is_last);
    });
  }

  Step on_rail(int k, int tick) const {
    const int n = place.n_hosts;
    const bool alone = place.n_here == 1;  // then nobody has stored a sum of this host
    Step step;
    if (tick > 0) step.recv = place.rank_at(-1, k);
    if (tick < 2 * n - 2) step.send = place.rank_at(1, k);
    step.completes = tick == n - 1;
    return of_chunk(k, (place.host - 1 - tick + 2 * n) % n, step, tick < n && alone, tick < n && !alone, tick >= n - 1);
  }

  void all_reduce_rails() const {
    const int n = place.n_hosts;
    for_each_tick(place.position, place.n_rails, place.n_here, 2 * n - 1, [&](int k, int first, int last) {
      for_each_part(n - 1, first, last, [&](int from, int to) {
        if (is_regular()) return steps.repeat({{on_rail(k, from)}}, static_cast<uint32_t>(to - from + 1), walk(-1));
        for (int tick = from; tick <= to; tick++) add(on_rail(k, tick));
      });
    });
  }

  void gather_here() const {
    add_trips([&](int trip, int tick) {
      return of_chunk(rail(trip, place.position - tick), owner_host(trip), here(tick, tick < place.n_here - 1), false,
                      tick == 0, tick > 0);
    });
  }
};

// Chunks are as small as a round allows: a lane's hosts times ranks of one.
Schedule with_smallest_chunks(Hosts hosts, Ranks r) {
  size_t largest = 0;
  for (const auto& ranks : hosts) largest = std::max(largest, ranks.size());
  const size_t chunks = largest * hosts.size() * 2 * r.lanes;
  return hierarchical_all_reduce(hosts, r.rank, static_cast<uint32_t>(chunks), 2 * r.lanes);
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

// Racks take the place of hosts. A ring round a rack has a host's link for each host once, a rail for each of its
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

Schedule hierarchical_all_reduce(Hosts hosts, int rank, uint32_t n_chunks, uint32_t n_lanes) {
  const Place place(hosts, rank);
  Schedule schedule{.rank = rank, .n_ranks = 0, .n_chunks = n_chunks};
  for (const std::vector<int>& ranks : hosts) schedule.n_ranks += static_cast<int>(ranks.size());
  const auto chunks_of_group = static_cast<uint32_t>(place.n_rails * place.n_hosts);
  schedule.alike = {place.n_here, {.stride = static_cast<uint32_t>(place.n_rails), .modulus = chunks_of_group}};
  const uint32_t n_groups = (n_chunks + chunks_of_group - 1) / chunks_of_group;
  for (uint32_t lane = 0; lane < std::min(n_lanes, n_groups); lane++) {
    Steps steps;
    for (uint32_t index = lane; index < n_groups; index += n_lanes) {
      const Group group{place, n_chunks, index, steps};
      if (place.n_here > 1 || place.n_hosts == 1) group.reduce_here();
      if (place.n_hosts > 1) group.all_reduce_rails();
      if (place.n_here > 1) group.gather_here();
    }
    schedule.add_lane(lane, std::move(steps));
  }
  return schedule;
}

extern const Algorithm kHierarchical = {
    .name = "hierarchical",
    .all_reduce = {[](Ranks r) { return with_smallest_chunks(r.hosts, r); }, hierarchical_cost, true},
    .otherwise = Algo::kRing,
    .is_for_full_hosts = true};
extern const Algorithm kRacks = {
    .name = "racks",
    .all_reduce = {[](Ranks r) { return with_smallest_chunks(r.racks, r); }, racks_cost, true},
    .otherwise = Algo::kRing,
    .is_for_racks = true};

}  // namespace tutti
