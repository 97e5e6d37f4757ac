// All builders in one table, so that sweeps and mutations need not know them one by one.
#pragma once

#include <vector>

#include "testing.h"

namespace tutti::testing {

using Ranks = const std::vector<int>&;

struct Builder {
  const char* name;
  Goal goal;
  bool has_root, in_place, rank_order;
  // Lanes of a ring, window of an exchange: `width`. 0 slots are as many as the width.
  bool has_width;
  uint32_t min_slots;
  Schedule (*build)(Ranks order, int rank, int root, uint32_t n_chunks, uint32_t width);
};

inline int count(Ranks order) {
  return static_cast<int>(order.size());
}

// The ranks in `order` on hosts, of which the i-th has size_of(i) ranks and the last one what is left.
template <class SizeOf>
std::vector<std::vector<int>> hosts_of(Ranks order, SizeOf size_of) {
  std::vector<std::vector<int>> hosts;
  for (size_t at = 0; at < order.size(); at += hosts.back().size()) {
    const size_t end = std::min(order.size(), at + size_of(hosts.size()));
    hosts.emplace_back(order.begin() + static_cast<long>(at), order.begin() + static_cast<long>(end));
  }
  return hosts;
}

// Every second of hosts with one and two ranks in turn.
inline std::vector<std::vector<int>> slow_hosts_of(Ranks order) {
  const auto hosts = hosts_of(order, [](size_t host) { return host % 2 + 1; });
  std::vector<std::vector<int>> slow;
  for (size_t host = 1; host < hosts.size(); host += 2) slow.push_back(hosts[host]);
  return slow;
}

inline constexpr Builder kBuilders[] = {
    {"ring all-reduce", Goal::kAllReduce, false, true, false, true, 2,
     [](Ranks order, int rank, int, uint32_t c, uint32_t width) { return ring_all_reduce(order, rank, c, width); }},
    {"tree all-reduce", Goal::kAllReduce, false, true, false, false, 1,
     [](Ranks order, int rank, int, uint32_t c, uint32_t) { return tree_all_reduce(order, rank, c); }},
    {"tree all-reduce, slow hosts", Goal::kAllReduce, false, true, false, false, 1,
     [](Ranks order, int rank, int, uint32_t c, uint32_t) {
       return tree_all_reduce(order, rank, c, slow_hosts_of(order));
     }},
    {"tree broadcast, slow hosts", Goal::kBroadcast, true, true, false, false, 1,
     [](Ranks order, int rank, int root, uint32_t c, uint32_t) {
       return tree_broadcast(order, rank, root, c, slow_hosts_of(order));
     }},
    {"tree reduce, slow hosts", Goal::kReduce, true, true, false, false, 1,
     [](Ranks order, int rank, int root, uint32_t c, uint32_t) {
       return tree_reduce(order, rank, root, c, slow_hosts_of(order));
     }},
    {"ring broadcast", Goal::kBroadcast, true, true, false, true, 1,
     [](Ranks order, int rank, int root, uint32_t c, uint32_t width) {
       return ring_broadcast(order, rank, root, c, width);
     }},
    {"tree broadcast", Goal::kBroadcast, true, true, false, false, 1,
     [](Ranks order, int rank, int root, uint32_t c, uint32_t) { return tree_broadcast(order, rank, root, c); }},
    {"ring reduce", Goal::kReduce, true, true, false, true, 1,
     [](Ranks order, int rank, int root, uint32_t c, uint32_t width) {
       return ring_reduce(order, rank, root, c, width);
     }},
    {"tree reduce", Goal::kReduce, true, true, false, false, 1,
     [](Ranks order, int rank, int root, uint32_t c, uint32_t) { return tree_reduce(order, rank, root, c); }},
    {"direct reduce", Goal::kReduce, true, true, true, false, 1,
     [](Ranks order, int rank, int root, uint32_t c, uint32_t) { return direct_reduce(count(order), rank, root, c); }},
    {"two-shot reduce", Goal::kReduce, true, true, true, false, 1,
     [](Ranks order, int rank, int root, uint32_t c, uint32_t) {
       return two_shot_reduce(count(order), rank, root, c);
     }},
    {"ring all-gather", Goal::kAllGather, false, true, false, true, 2,
     [](Ranks order, int rank, int, uint32_t c, uint32_t width) { return ring_all_gather(order, rank, c, width); }},
    {"circulant all-gather", Goal::kAllGather, false, true, false, true, 0,
     [](Ranks order, int rank, int, uint32_t c, uint32_t width) {
       return circulant_all_gather(order, rank, c, width);
     }},
    {"direct broadcast", Goal::kBroadcast, true, true, false, false, 1,
     [](Ranks order, int rank, int root, uint32_t c, uint32_t) {
       return direct_broadcast(count(order), rank, root, c);
     }},
    {"direct all-gather", Goal::kAllGather, false, true, false, false, 1,
     [](Ranks order, int rank, int, uint32_t c, uint32_t) { return direct_all_gather(count(order), rank, c); }},
    {"ring reduce-scatter", Goal::kReduceScatter, false, true, false, true, 2,
     [](Ranks order, int rank, int, uint32_t c, uint32_t width) { return ring_reduce_scatter(order, rank, c, width); }},
    {"circulant reduce-scatter", Goal::kReduceScatter, false, true, false, true, 0,
     [](Ranks order, int rank, int, uint32_t c, uint32_t width) {
       return circulant_reduce_scatter(order, rank, c, width);
     }},
    {"direct reduce-scatter", Goal::kReduceScatter, false, true, true, false, 1,
     [](Ranks order, int rank, int, uint32_t c, uint32_t) { return direct_reduce_scatter(count(order), rank, c); }},
    {"doubling all-reduce", Goal::kAllReduce, false, true, false, false, 1,
     [](Ranks order, int rank, int, uint32_t c, uint32_t) { return doubling_all_reduce(order, rank, c); }},
    {"circulant all-reduce", Goal::kAllReduce, false, true, false, true, 0,
     [](Ranks order, int rank, int, uint32_t c, uint32_t width) {
       return circulant_all_reduce(order, rank, c, width);
     }},
    {"hierarchical all-reduce, alike hosts", Goal::kAllReduce, false, true, false, true, 2,
     [](Ranks order, int rank, int, uint32_t c, uint32_t width) {
       return hierarchical_all_reduce(hosts_of(order, [&](size_t) { return (order.size() + 2) / 3; }), rank, c, width);
     }},
    {"hierarchical all-reduce, growing hosts", Goal::kAllReduce, false, true, false, true, 2,
     [](Ranks order, int rank, int, uint32_t c, uint32_t width) {
       return hierarchical_all_reduce(hosts_of(order, [](size_t host) { return host + 1; }), rank, c, width);
     }},
    {"hierarchical all-reduce, a big host among small", Goal::kAllReduce, false, true, false, true, 2,
     [](Ranks order, int rank, int, uint32_t c, uint32_t width) {
       return hierarchical_all_reduce(
           hosts_of(order, [](size_t host) { return size_t{host == 0   ? 1u
                                                           : host == 1 ? 5u
                                                                       : 2u}; }), rank, c, width);
     }},
    {"one-shot all-reduce", Goal::kAllReduce, false, true, true, false, 1,
     [](Ranks order, int rank, int, uint32_t c, uint32_t) { return one_shot_all_reduce(count(order), rank, c); }},
    {"two-shot all-reduce", Goal::kAllReduce, false, true, true, true, 2,
     [](Ranks order, int rank, int, uint32_t c, uint32_t width) {
       return two_shot_all_reduce(count(order), rank, c, width);
     }},
    {"chain all-reduce", Goal::kAllReduce, false, true, true, false, 1,
     [](Ranks order, int rank, int, uint32_t c, uint32_t) { return chain_all_reduce(count(order), rank, c); }},
    {"chain reduce", Goal::kReduce, true, true, true, false, 1,
     [](Ranks order, int rank, int root, uint32_t c, uint32_t) { return chain_reduce(count(order), rank, root, c); }},
    {"chain reduce-scatter", Goal::kReduceScatter, false, true, true, false, 1,
     [](Ranks order, int rank, int, uint32_t c, uint32_t) { return chain_reduce_scatter(count(order), rank, c); }},
    {"all-to-all", Goal::kAllToAll, false, false, false, false, 1,
     [](Ranks order, int rank, int, uint32_t c, uint32_t) { return all_to_all(count(order), rank, c); }},
    {"gather", Goal::kGather, true, true, false, false, 1,
     [](Ranks order, int rank, int root, uint32_t c, uint32_t) { return gather(count(order), rank, root, c); }},
    {"scatter", Goal::kScatter, true, true, false, false, 1,
     [](Ranks order, int rank, int root, uint32_t c, uint32_t) { return scatter(count(order), rank, root, c); }},
    {"barrier", Goal::kBarrier, false, false, false, false, 1,
     [](Ranks order, int rank, int, uint32_t, uint32_t) { return barrier(count(order), rank); }},
};

inline uint32_t min_slots(const Builder& builder, uint32_t width) {
  return builder.min_slots > 0 ? builder.min_slots : width;
}

inline std::vector<Schedule> all_ranks(const Builder& builder, Ranks order, int root, uint32_t n_chunks,
                                       uint32_t width = 1) {
  return for_all_ranks(count(order), [&](int rank) { return builder.build(order, rank, root, n_chunks, width); });
}

}  // namespace tutti::testing
