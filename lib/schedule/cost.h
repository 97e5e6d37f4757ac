// What a collective costs with one of the algorithms, on paper: hops in sequence, messages, and bytes that are moved,
// added up and sent between hosts. No prices and no clocks. Values; any thread.
#pragma once

#include <algorithm>
#include <bit>

namespace tutti {

// An amount of work: that of the busiest rank, and that of all ranks together.
struct Work {
  double busiest = 0, total = 0;
  Work& operator+=(const Work& other) {
    busiest += other.busiest, total += other.total;
    return *this;
  }
};

// Messages and bytes are counted both where they are sent and where they are received.
struct Moves {
  Work messages, bytes;
};

struct Cost {
  double here_hops = 0, wire_hops = 0;
  Moves here, wire;
  Work summed;
  double out = 0;
};

// Where nothing comes back, consecutive operations overlap, so hops count for less.
inline constexpr double kPassedOn = 0.25;

// What an algorithm's cost depends on, and parts of its formula. `n`: ranks; `bytes`: of one block in an all-gather,
// reduce-scatter or all-to-all, otherwise of everything.
struct Workload {
  const double n, bytes, slot_bytes, lanes;
  const double hosts, here;        // `here`: ranks of the largest host
  const bool shares_memory, sums;  // whether all ranks do; whether the collective does
  const double machines = hosts;   // real hosts even where `hosts` and `here` are racks, to find what leaves the racks
  const double racks = 1, rack = n;
  const double slowness = 1;  // how many times as fast other hosts are as slow ones; 1: there are no slow ones

  // Depths of a binary tree of all ranks, and of one of all hosts.
  int depth() const { return static_cast<int>(std::bit_width(static_cast<unsigned>(n) - 1)); }
  int host_depth() const { return static_cast<int>(std::bit_width(static_cast<unsigned>(hosts) - 1)); }
  double others() const { return n - 1; }
  double elsewhere() const { return n - here; }
  // Where several hosts send to one at once, its link is idle now and then. From 64 KiB on, that took 1.1 to 1.4 times
  // what a ring took.
  double incast() const { return hosts > 2 ? 1.15 : 1; }
  Work each(double work) const { return {work, work * n}; }
  // Messages that a value of this size takes, at least `least`.
  double messages_for(double value_bytes, double least) const { return std::max(least, value_bytes / slot_bytes); }
  // Rounds run one after the other, and each waits for its hops unless another lane has work to do meanwhile.
  double rounds(double value_bytes) const { return std::max(1.0, value_bytes / slot_bytes / (lanes * lanes)); }

  // Each rank exchanges this much with each of the others.
  void with_all(Cost& cost, double messages, double bytes_each) const {
    cost.here = {each(messages * (here - 1)), each(bytes_each * (here - 1))};
    cost.wire = {each(messages * elsewhere()), each(bytes_each * elsewhere())};
  }
  // Divides work into what stays on the host and the share `out` that leaves it.
  static void split(Cost& cost, Work messages, Work moved, double out) {
    const auto part = [](Work work, double share) { return Work{work.busiest * share, work.total * share}; };
    cost.here = {part(messages, 1 - out), part(moved, 1 - out)};
    cost.wire = {part(messages, out), part(moved, out)};
  }
  // One rank exchanges with all the others.
  void with_one(Cost& cost, Work messages, Work moved) const { split(cost, messages, moved, elsewhere() / others()); }
  // A rank that receives from one rank and sends to another through shared memory writes to memory that is in the
  // reader's caches. Between CPUs that share no cache, the same ring took 240 us on one day and 1500 on another;
  // sending to all at once took 240 and 300.
  Work passed_on(Work moved) const {
    const double dearer = shares_memory ? 1.5 : 1;
    return {dearer * moved.busiest, dearer * moved.total};
  }
  // From each rank to the next, host after host; the share `out` of all steps leads to another host.
  void to_next(Cost& cost, Work messages, Work moved, double out) const {
    if (hosts == 1 || here == 1) return split(cost, messages, moved, hosts == 1 ? 0 : 1);
    // Only the ranks at a host's two ends talk to other hosts.
    cost.here = {{messages.busiest / 2, messages.total * (1 - out)}, {moved.busiest / 2, moved.total * (1 - out)}};
    cost.wire = {{messages.busiest / 2, messages.total * out}, {moved.busiest / 2, moved.total * out}};
  }
  // Over distances 1, 2, 4, ..., of which the longest leave the host.
  double out_share() const { return depth() > 0 ? static_cast<double>(host_depth()) / depth() : 0; }
  void over_distances(Cost& cost, Work messages, Work moved) const { split(cost, messages, moved, out_share()); }
  // `all` hops, of which `out` are between hosts.
  Cost hops(double all, double out) const { return hosts > 1 ? Cost{all - out, out} : Cost{all}; }
  // How often a value is moved: sent to be added up, received and added, its sum sent and received.
  double moves_of_sum() const { return shares_memory ? 2.5 : 3; }
  // Over sockets, bytes cost more with several partners in turn than with the two of a ring: 1.05 to 1.3 times as much
  // from 128 KiB on, and the same below 64 KiB (4 ranks on 2 CPUs).
  double in_turn() const { return shares_memory || n == 2 ? 1 : 1 + 0.1 * std::min(1.0, bytes / (128 << 10)); }
  // Bytes that a rank passes on only after it has all of them. The smaller operations are, the more of them are under
  // way at once.
  double piece_behind(double value_bytes, double chunks) const {
    constexpr double kAloneBytes = 1 << 20;
    return std::min(1.0, bytes / kAloneBytes) * std::min(chunks * slot_bytes, value_bytes);
  }
  // Ranks in the middle receive and send. In shared memory nobody reads what is still being written.
  double sides() const { return n > 2 || shares_memory ? 2 : 1; }
};

// Hops until the last of all others has sent something. Over sockets a rank cannot see at a glance which ranks have
// sent: four ranks on two CPUs that begin together take 37 us for 8 B where the first one adds up, and 23 by doubling.
inline double waits_for_all(const Workload& b) {
  return b.shares_memory || b.hosts > 1 || b.n == 2 ? 1 : 2.2;
}

}  // namespace tutti
