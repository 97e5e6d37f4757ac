// What an operation costs by each algorithm, on paper: hops one after the other, messages, bytes moved and added up,
// each at a price. Pure functions; any thread. All ranks compute the same numbers from the same facts and prices: no
// library functions, no contracted products (meson.build), so that they choose alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "debug/call.h"

namespace tutti {

struct RackFacts {
  int n = 1, largest = 0;         // in ranks
  uint64_t bytes_per_second = 0;  // of what leads out of a rack; 0: as much as its hosts can send
  uint64_t latency_ns = 0;        // from one to another, besides what it is between hosts
};

struct MachineFacts {
  int ranks = 1, usable_cpus = 1, cpus = 1;  // usable: by its ranks

  // How much longer everybody's work takes because CPUs are shared.
  double oversubscription() const { return ranks <= usable_cpus ? 1 : static_cast<double>(ranks) / usable_cpus; }
  // As if all ranks might run on every CPU.
  MachineFacts unbound() const { return {ranks, cpus, cpus}; }
};

// What all ranks know of each other when the group has formed. No clock has told any of it.
struct Facts {
  int n_ranks = 1;
  MachineFacts machine;                            // where ranks are most in each other's way
  int hosts = 1, largest_host = 1;                 // in ranks
  bool shares_memory = true;                       // all ranks of a host
  bool has_rdma = false;                           // between hosts
  uint64_t wire_bytes_per_second = 1'000'000'000;  // of the slowest host
  uint64_t fast_bytes_per_second = 0;              // of the slowest that is not a slow one; 0: none is
  RackFacts racks;
  uint64_t wire_latency_ns = 0;    // between hosts, as a file says; 0: none does
  uint64_t cache_bytes = 8 << 20;  // last-level, for all ranks of a host

  bool all_share_memory() const { return shares_memory && hosts == 1; }
  // How many times as fast as the slow hosts the others are.
  double slowness() const {
    return fast_bytes_per_second == 0
               ? 1
               : static_cast<double>(fast_bytes_per_second) / static_cast<double>(wire_bytes_per_second);
  }
};

// What a rank should have under way if hosts are far apart: twice what its host sends in a round trip. 0: they are not.
uint64_t under_way_bytes(const Facts& facts);
// How far hosts are from each other at most, one way, as a file says.
uint64_t farthest_ns(const Facts& facts);

// One line for people and for tutti-tune, which reads it again: "facts: 4 ranks on 2 hosts of at most 2; ...".
std::string to_text(const Facts& facts);
std::optional<Facts> facts_from_text(const std::string& text);  // that has such a line anywhere

// Within a host, or between hosts.
struct Share {
  double hops = 0, messages = 0, bytes = 0;  // one after the other; sent and received by a rank; through its CPU
};

struct RankCost {
  Share here, wire;
  double summed_bytes = 0;  // read for it
  double out_bytes = 0;     // of the host that sends most
  double rack_hops = 0;     // of those over the wire, to another rack
  double rack_bytes = 0;    // of the rack that sends most
  double far_bytes = 0;     // of those above, what is in no cache
};

// In nanoseconds.
struct Medium {
  double hop = 0;      // until the other side has noticed a message
  double turn = 0;     // the same where ranks share CPUs, for each rank that has to have its turn first
  double message = 0;  // of a CPU's time, for sending one or for receiving one
  double byte = 0;     // of a CPU's time
};
struct Prices {
  Medium shm, loopback, network, rdma;  // loopback: TCP within a host; network: TCP between hosts
  double summed_byte = 0, far_byte = 0;
};

// `bytes`: of an all-reduce, broadcast or reduce all; of an all-gather, reduce-scatter or all-to-all one block.
RankCost rank_cost_of(Collective collective, Algo algo, uint64_t bytes, const Facts& facts);
// How many lanes the schedule has for it. Two between hosts where a message is shorter than what should be under way,
// if a chunk takes several: by 2 hosts 1 ms apart at 500 Mb/s, as far as 20 us at 25 Gb/s, 16 MiB take 319 ms instead
// of 525. At 1 and 2.5 Gb/s without that distance one lane fills the network too, and at 10 Gb/s, by 4 hosts that share
// two CPUs, two take 1.2 times as long.
uint32_t lanes_of(Collective collective, Algo algo, uint64_t bytes, const Facts& facts);

// Of it what CPUs do and wait for, and what its bytes take on the slowest part of the network.
double work_ns(const RankCost& cost, const Facts& facts, const Prices& prices);
double wire_ns(const RankCost& cost, const Facts& facts);
// The longer one of both, and this much of the shorter one: the network carries some messages while CPUs are busy with
// others, but not the first and the last ones.
inline constexpr double kOneByOne = 2.0 / 3;
double price_ns(const RankCost& cost, const Facts& facts, const Prices& prices);

}  // namespace tutti
