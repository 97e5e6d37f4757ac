// What an operation costs by each algorithm, on paper: hops one after the other, messages, bytes copied and added up,
// each at a price that was measured. Good enough to say which algorithms are worth trying, not which one is fastest.
// Pure; any thread. All ranks come to the same numbers from the same prices: no library functions, no contracted
// products (meson.build), so that they choose alike.
#pragma once

#include <cstdint>
#include <span>

#include "debug/call.h"

namespace tutti {

inline constexpr int kMostLanes = 2;

// One way to carry an operation out.
struct Plan {
  Algo algo = Algo::kAuto;
  uint8_t lanes = 1;   // 1 or 2: fewer messages, or groups of chunks that overlap
  bool lends = false;  // private memory too is read where it lies, instead of being copied through slots
  bool operator==(const Plan&) const = default;
};

// How long it took, as the slowest rank saw it.
struct Measured {
  Plan plan;
  int64_t ns = 0;
  bool operator==(const Measured&) const = default;
};

// What the group's ranks share, on the host where they are most in each other's way.
struct Ground {
  int n_ranks = 1;
  int ranks_here = 1, cpus_here = 1;
  int hosts = 1, largest_host = 1;  // in ranks
  uint32_t slot_bytes = 128 << 10;
  uint64_t lend_from_bytes = 16 << 10;  // smaller operations lend nothing

  // How much longer everybody's work takes because CPUs are shared.
  double crowding() const { return ranks_here <= cpus_here ? 1 : static_cast<double>(ranks_here) / cpus_here; }
};

// In nanoseconds.
struct Prices {
  double hop = 0;      // until the other side has noticed a message
  double message = 0;  // of a CPU's time, for sending one or for receiving one
  double copied_byte = 0;
  double summed_byte = 0;  // of each source
  double wired_byte = 0;   // that leaves a host
};
inline constexpr int kPrices = 5;

// What is to be paid for.
struct Load {
  double hops = 0, messages = 0, copied_bytes = 0, summed_bytes = 0, wired_bytes = 0;
};

// Algorithms that a collective does not have are another one of its own.
Algo own_algo(Collective collective, Algo algo);

// `bytes`: of an all-reduce, broadcast or reduce all; of an all-gather or reduce-scatter one rank's block.
Load load_of(Collective collective, Plan plan, uint64_t bytes, const Ground& ground);
double price_of(const Load& load, const Prices& prices);

// Point-to-point messages that a rank exchanges at once.
struct Traffic {
  uint64_t messages = 0;      // to and from others, in slots
  uint64_t copied_bytes = 0;  // to, from and within this rank
  uint64_t wired_bytes = 0;   // that leave this host
};
Load load_of(const Traffic& traffic, const Ground& ground);

// An operation that was measured.
struct Sample {
  Load load;
  double ns = 0;
};
// The prices that explain the samples best, in relative terms; where those say little, near to `guess`,
// whose summed_byte stays almost as it is.
Prices fit_prices(std::span<const Sample> samples, const Prices& guess);

// Before anything was measured.
Prices default_prices(bool shared_memory, const Ground& ground);

}  // namespace tutti
