// The predicted cost of an operation by each algorithm: successive hops, messages, bytes moved and bytes summed, each
// at a price. Pure functions; any thread. All ranks compute the same numbers from the same facts and prices, so that
// they choose alike: no library functions, no fused multiply-adds (meson.build).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "debug/call.h"

namespace tutti {

struct RackFacts {
  int n = 1, largest = 0;         // how many; ranks in the largest
  uint64_t bytes_per_second = 0;  // of a rack's uplink; 0: as much as its hosts can send
  uint64_t latency_ns = 0;        // from one to another, in addition to that between hosts
};

struct MachineFacts {
  int ranks = 1, usable_cpus = 1, cpus = 1;  // usable: by its ranks

  // How much longer everybody's work takes because CPUs are shared.
  double oversubscription() const { return ranks <= usable_cpus ? 1 : static_cast<double>(ranks) / usable_cpus; }
  // As if all ranks might run on every CPU.
  MachineFacts unbound() const { return {ranks, cpus, cpus}; }
};

// What all ranks know about each other once the group has formed. None of it was measured with a clock.
struct Facts {
  int n_ranks = 1;
  MachineFacts machine;                            // the one with the most ranks per CPU
  int hosts = 1, largest_host = 1;                 // how many; ranks in the largest
  int smallest_host = 0;                           // ranks in the smallest; 0: as many as in the largest
  bool shares_memory = true;                       // within a host
  bool has_rdma = false;                           // between hosts
  uint64_t wire_bytes_per_second = 1'000'000'000;  // of the slowest host
  uint64_t fast_bytes_per_second = 0;              // of the slowest among the others; 0: no host is slow
  RackFacts racks;
  uint64_t wire_latency_ns = 0;    // between hosts, from a file; 0: unknown
  uint64_t cache_bytes = 8 << 20;  // last-level, for all ranks of a host

  bool all_share_memory() const { return shares_memory && hosts == 1; }
  // How many times as fast the other hosts are as the slow ones.
  double slowness() const {
    return fast_bytes_per_second == 0
               ? 1
               : static_cast<double>(fast_bytes_per_second) / static_cast<double>(wire_bytes_per_second);
  }
};

// Bytes that a rank should keep in flight: twice its part of what its host sends in a round trip. 0: hosts are near.
uint64_t under_way_bytes(const Facts& facts);
// The longest one-way latency between hosts, from a file.
uint64_t farthest_ns(const Facts& facts);

// One line for people and for tutti-tune, which reads it again: "facts: 4 ranks on 2 hosts of at most 2; ...".
std::string to_text(const Facts& facts);
std::optional<Facts> facts_from_text(const std::string& text);  // from the first such line anywhere in `text`

// Within a host, or between hosts.
struct Share {
  double hops = 0, messages = 0, bytes = 0;  // successive; sent and received by a rank; through its CPU
};

struct RankCost {
  Share here, wire;
  double summed_bytes = 0;  // bytes read for sums
  double out_bytes = 0;     // sent by the host that sends most
  double rack_hops = 0;     // hops over the wire to another rack
  double rack_bytes = 0;    // sent by the rack that sends most
  double far_bytes = 0;     // bytes of those above that are in no cache
};

// In nanoseconds.
struct Medium {
  double hop = 0;      // until the other side has noticed a message
  double turn = 0;     // the same if ranks share CPUs, for each rank that has to run first
  double message = 0;  // CPU time, to send or to receive one
  double byte = 0;     // CPU time
};
struct Prices {
  Medium shm, loopback, network, rdma;  // loopback: TCP within a host; network: TCP between hosts
  double summed_byte = 0, far_byte = 0;
};

// `bytes`: the whole buffer of an all-reduce, broadcast or reduce; one block for all-gather, reduce-scatter,
// all-to-all.
RankCost rank_cost_of(Collective collective, Algo algo, uint64_t bytes, const Facts& facts);
// How many lanes the schedule has. Two between hosts if a message is shorter than what should be in flight and a chunk
// takes several messages: between 2 hosts 1 ms apart at 500 Mb/s, the same bandwidth-delay product as 20 us at 25 Gb/s,
// 16 MiB take 319 ms instead of 525. At 1 and 2.5 Gb/s without that delay one lane fills the network too, and at 10
// Gb/s, between 4 hosts that share two CPUs, two lanes take 1.2 times as long.
uint32_t lanes_of(Collective collective, Algo algo, uint64_t bytes, const Facts& facts);

// The two parts of a cost: CPU work and waiting, and the time of its bytes on the slowest part of the network.
double work_ns(const RankCost& cost, const Facts& facts, const Prices& prices);
double wire_ns(const RankCost& cost, const Facts& facts);
// The longer of the two plus this fraction of the shorter: the network carries some messages while CPUs are busy with
// others, but not the first and the last ones.
inline constexpr double kOneByOne = 2.0 / 3;
double price_ns(const RankCost& cost, const Facts& facts, const Prices& prices);

}  // namespace tutti
