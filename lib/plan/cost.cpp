#include "plan/cost.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

namespace tutti {
namespace {

// Bytes of a slot in the model: typical sizes, so that TUTTI_SLOT_BYTES changes no choice.
constexpr double kSharedSlotBytes = 128 << 10, kWireSlotBytes = 64 << 10, kSocketSlotBytes = 512 << 10;

double price_ns(const Share& share, const Medium& medium, double oversubscription, double least_hop_ns = 0) {
  const double hop = oversubscription > 1 ? oversubscription * medium.turn : medium.hop;
  return share.hops * std::max(hop, least_hop_ns) + share.messages * medium.message + share.bytes * medium.byte;
}

// Twice the bytes that a rank sends in this time.
double twice_sent_in(uint64_t ns, const Facts& facts) {
  return 2e-9 * static_cast<double>(ns) * static_cast<double>(facts.wire_bytes_per_second) / facts.largest_host;
}

double slot_bytes_of(const Facts& facts) {
  if (facts.all_share_memory()) return kSharedSlotBytes;
  if (facts.hosts == 1 || facts.has_rdma) return kSocketSlotBytes;
  return std::max(kWireSlotBytes, static_cast<double>(under_way_bytes(facts)));
}

// In how many turns a rank of the smallest host does what several of the largest do at once.
double turns_of(const Facts& facts) {
  const int fewest = facts.smallest_host > 0 ? facts.smallest_host : facts.largest_host;
  return static_cast<double>((facts.largest_host + fewest - 1) / fewest);
}

// Among hosts, or among racks as if they were hosts.
Workload workload_of(Collective collective, uint64_t bytes, uint32_t lanes, const Facts& facts, bool among_racks) {
  const int hosts = among_racks ? facts.racks.n : facts.hosts;
  return {.n = static_cast<double>(facts.n_ranks),
          .bytes = static_cast<double>(bytes),
          .slot_bytes = slot_bytes_of(facts),
          .lanes = static_cast<double>(lanes),
          .hosts = static_cast<double>(hosts),
          .here = static_cast<double>(among_racks ? facts.racks.largest : facts.largest_host),
          .shares_memory = facts.all_share_memory(),
          .sums = traits(collective).reduces,
          .machines = static_cast<double>(facts.hosts),
          .racks = static_cast<double>(facts.racks.n),
          .rack = static_cast<double>(facts.racks.n > 1 ? facts.racks.largest : facts.n_ranks),
          .slowness = among_racks ? 1 : facts.slowness()};
}

}  // namespace

uint64_t farthest_ns(const Facts& facts) {
  return facts.wire_latency_ns + (facts.racks.n > 1 ? facts.racks.latency_ns : 0);
}

uint64_t under_way_bytes(const Facts& facts) {
  constexpr uint64_t kFarNs = 5'000'000, kMostBytes = 16 << 20;
  const uint64_t round_trip_ns = 2 * farthest_ns(facts);
  if (facts.hosts == 1 || round_trip_ns < kFarNs) return 0;
  return static_cast<uint64_t>(std::min<double>(kMostBytes, twice_sent_in(round_trip_ns, facts)));
}

std::string to_text(const Facts& f) {
  std::string text = format(
      "facts: %d ranks on %d hosts of at most %d; %d ranks for %d of %d CPUs; %s, %s of %lu bytes per second; "
      "caches of %lu bytes",
      f.n_ranks, f.hosts, f.largest_host, f.machine.ranks, f.machine.usable_cpus, f.machine.cpus,
      f.shares_memory ? "shm" : "loopback", f.has_rdma ? "rdma" : "network", f.wire_bytes_per_second, f.cache_bytes);
  if (f.racks.n > 1 || f.fast_bytes_per_second > 0)
    text += format("; fast hosts of %lu; %d racks of at most %d ranks, of %lu", f.fast_bytes_per_second, f.racks.n,
                   f.racks.largest, f.racks.bytes_per_second);
  if (f.smallest_host > 0 && f.smallest_host < f.largest_host)
    text += format("; at least %d ranks on a host", f.smallest_host);
  if (f.wire_latency_ns + f.racks.latency_ns > 0)
    text += format("; %lu ns between hosts, %lu more between racks", f.wire_latency_ns, f.racks.latency_ns);
  return text + "\n";
}

std::optional<Facts> facts_from_text(const std::string& text) {
  Facts f;
  char here[16] = "", between[16] = "";
  const size_t at = text.find("facts: ");
  if (at == text.npos ||
      sscanf(text.c_str() + at,
             "facts: %d ranks on %d hosts of at most %d; %d ranks for %d of %d CPUs; %15[a-z], %15[a-z] of %lu bytes "
             "per second; caches of %lu bytes; fast hosts of %lu; %d racks of at most %d ranks, of %lu",
             &f.n_ranks, &f.hosts, &f.largest_host, &f.machine.ranks, &f.machine.usable_cpus, &f.machine.cpus, here,
             between, &f.wire_bytes_per_second, &f.cache_bytes, &f.fast_bytes_per_second, &f.racks.n, &f.racks.largest,
             &f.racks.bytes_per_second) < 10)
    return std::nullopt;
  const std::string rest = text.substr(at, text.find('\n', at) - at);
  if (const size_t least = rest.find("; at least "); least != rest.npos)
    sscanf(rest.c_str() + least, "; at least %d", &f.smallest_host);
  const size_t last = rest.rfind("; ");
  uint64_t wire_ns = 0, rack_ns = 0;
  if (last != rest.npos && sscanf(rest.c_str() + last, "; %lu ns between hosts, %lu more", &wire_ns, &rack_ns) == 2)
    f.wire_latency_ns = wire_ns, f.racks.latency_ns = rack_ns;
  f.shares_memory = here == std::string_view("shm");
  f.has_rdma = between == std::string_view("rdma");
  return f;
}

uint32_t lanes_of(Collective collective, Algo algo, uint64_t bytes, const Facts& facts) {
  constexpr uint64_t kUsualRoundTripNs = 40'000;
  const Algorithm* const algorithm = algorithm_of(own_algo(collective, algo));
  if (algorithm == nullptr || !algorithm->method(collective).overlaps || facts.hosts == 1) return 1;
  const double chunk = static_cast<double>(bytes) / (collective == Collective::kAllReduce ? facts.n_ranks : 1);
  const double under_way = twice_sent_in(std::max(kUsualRoundTripNs, 2 * farthest_ns(facts)), facts);
  return under_way >= 2 * kWireSlotBytes && chunk > slot_bytes_of(facts) ? 2 : 1;
}

RankCost rank_cost_of(Collective collective, Algo algo, uint64_t bytes, const Facts& facts) {
  if (facts.n_ranks == 1) return {.here = {0, 0, 2 * static_cast<double>(bytes)}};
  const uint32_t lanes = lanes_of(collective, algo, bytes, facts);
  const Workload workload = workload_of(collective, bytes, lanes, facts, false);
  // Collectives without algorithms are direct.
  const Algorithm* const algorithm = algorithm_of(own_algo(collective, algo));
  const auto cost_of =
      (algorithm != nullptr ? algorithm->method(collective) : algorithm_of(Algo::kDirect)->all_gather).cost;
  Cost cost = cost_of(workload);
  if (algorithm != nullptr && algorithm->is_for_full_hosts)
    for (Work* const work : {&cost.wire.messages, &cost.wire.bytes}) work->busiest *= turns_of(facts);
  const auto share = [&](Work work) {
    return std::max(work.busiest, work.total / workload.n * facts.machine.oversubscription());
  };
  RankCost busiest{{cost.here_hops, share(cost.here.messages), share(cost.here.bytes)},
                   {cost.wire_hops, share(cost.wire.messages), share(cost.wire.bytes)},
                   share(cost.summed),
                   facts.hosts > 1 ? cost.out : 0};
  if (facts.racks.n > 1) {
    const Cost among = cost_of(workload_of(collective, bytes, lanes, facts, true));
    busiest.rack_hops = among.wire_hops;
    busiest.rack_bytes = among.out;
  }
  const double all = rank_blocks(collective, facts.n_ranks) * workload.bytes * facts.largest_host;
  if (all > static_cast<double>(facts.cache_bytes))
    busiest.far_bytes = busiest.here.bytes + busiest.wire.bytes + busiest.summed_bytes;
  return busiest;
}

double work_ns(const RankCost& cost, const Facts& facts, const Prices& prices) {
  return price_ns(cost.here, facts.shares_memory ? prices.shm : prices.loopback, facts.machine.oversubscription()) +
         price_ns(cost.wire, facts.has_rdma ? prices.rdma : prices.network, facts.machine.oversubscription(),
                  static_cast<double>(facts.wire_latency_ns)) +
         cost.rack_hops * static_cast<double>(facts.racks.latency_ns) + cost.summed_bytes * prices.summed_byte +
         cost.far_bytes * prices.far_byte;
}

double wire_ns(const RankCost& cost, const Facts& facts) {
  const double between_racks =
      facts.racks.bytes_per_second > 0 ? cost.rack_bytes / static_cast<double>(facts.racks.bytes_per_second) : 0;
  return 1e9 * std::max(cost.out_bytes / static_cast<double>(facts.wire_bytes_per_second), between_racks);
}

// With the full sum of both, predictions for 3 to 8 ranks on hosts at 1 Gb/s were off by 5 to 30 % (medians) instead of
// 2 to 23, and 4 hosts chose doubling for 16 KiB, which took 277 us instead of 210.
double price_ns(const RankCost& cost, const Facts& facts, const Prices& prices) {
  const double work = work_ns(cost, facts, prices), wire = wire_ns(cost, facts);
  return std::max(work, wire) + std::min(work, wire) * kOneByOne;
}

}  // namespace tutti
