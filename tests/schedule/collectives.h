// All builders in one table, so that sweeps and mutations need not list them.
#pragma once

#include <vector>

#include "testing.h"

namespace tutti::testing {

using RankList = const std::vector<int>&;
using Hosts = std::vector<std::vector<int>>;

struct Builder {
  const char *name, *algorithm;  // null: the collective has only one algorithm
  Goal goal;
  uint32_t min_slots = 1;
  Hosts (*hosts)(RankList order) = nullptr;
  Hosts (*slow)(RankList order) = nullptr;

  bool has_root() const { return traits(goal).has_root(); }
  bool in_place() const { return goal != Goal::kAllToAll && goal != Goal::kBarrier; }
  bool rank_order() const { return algorithm != nullptr && algorithm_of(algo_named(algorithm))->keeps_rank_order; }
  // Whether more lanes, or on GPUs twice as many chunks, give a different schedule.
  bool has_lanes() const {
    return algorithm != nullptr && (method_of(algorithm, goal).overlaps || std::string_view(name).starts_with("tree"));
  }
};

inline int count(RankList order) {
  return static_cast<int>(order.size());
}

// The ranks in `order` on hosts: host i has size_of(i) ranks, and the last one the rest.
template <class SizeOf>
Hosts hosts_of(RankList order, SizeOf size_of) {
  Hosts hosts;
  for (size_t at = 0; at < order.size(); at += hosts.back().size()) {
    const size_t end = std::min(order.size(), at + size_of(hosts.size()));
    hosts.emplace_back(order.begin() + static_cast<long>(at), order.begin() + static_cast<long>(end));
  }
  return hosts;
}

inline Hosts three_hosts(RankList order) {
  return hosts_of(order, [&](size_t) { return (order.size() + 2) / 3; });
}
inline Hosts growing_hosts(RankList order) {
  return hosts_of(order, [](size_t host) { return host + 1; });
}
inline Hosts big_host_among_small(RankList order) {
  return hosts_of(order, [](size_t host) { return size_t{host == 0 ? 1u : host == 1 ? 5u : 2u}; });
}
// Every second host is slow; the hosts have one and two ranks alternately.
inline Hosts slow_hosts_of(RankList order) {
  const Hosts hosts = hosts_of(order, [](size_t host) { return host % 2 + 1; });
  Hosts slow;
  for (size_t host = 1; host < hosts.size(); host += 2) slow.push_back(hosts[host]);
  return slow;
}

inline constexpr Builder kBuilders[] = {
    {"ring all-reduce", "ring", Goal::kAllReduce, 2},
    {"ring broadcast", "ring", Goal::kBroadcast},
    {"ring reduce", "ring", Goal::kReduce},
    {"ring all-gather", "ring", Goal::kAllGather, 2},
    {"ring reduce-scatter", "ring", Goal::kReduceScatter, 2},
    {"tree all-reduce", "tree", Goal::kAllReduce},
    {"tree broadcast", "tree", Goal::kBroadcast},
    {"tree reduce", "tree", Goal::kReduce},
    {"tree all-reduce, slow hosts", "tree", Goal::kAllReduce, 1, nullptr, slow_hosts_of},
    {"tree broadcast, slow hosts", "tree", Goal::kBroadcast, 1, nullptr, slow_hosts_of},
    {"tree reduce, slow hosts", "tree", Goal::kReduce, 1, nullptr, slow_hosts_of},
    {"circulant all-gather", "tree", Goal::kAllGather, 2},
    {"circulant reduce-scatter", "tree", Goal::kReduceScatter, 2},
    {"circulant all-reduce", "circulant", Goal::kAllReduce, 2},
    {"doubling all-reduce", "doubling", Goal::kAllReduce},
    {"hierarchical all-reduce, alike hosts", "hierarchical", Goal::kAllReduce, 2, three_hosts},
    {"hierarchical all-reduce, growing hosts", "hierarchical", Goal::kAllReduce, 2, growing_hosts},
    {"hierarchical all-reduce, a big host among small", "hierarchical", Goal::kAllReduce, 2, big_host_among_small},
    {"racks all-reduce", "racks", Goal::kAllReduce, 2, three_hosts},
    {"one-shot all-reduce", "oneshot", Goal::kAllReduce},
    {"one-shot reduce", "oneshot", Goal::kReduce},
    {"two-shot all-reduce", "direct", Goal::kAllReduce, 2},
    {"two-shot reduce", "direct", Goal::kReduce},
    {"direct broadcast", "direct", Goal::kBroadcast},
    {"direct all-gather", "direct", Goal::kAllGather},
    {"direct reduce-scatter", "direct", Goal::kReduceScatter},
    {"linear all-reduce", "linear", Goal::kAllReduce},
    {"chain all-reduce", "chain", Goal::kAllReduce},
    {"chain reduce", "chain", Goal::kReduce},
    {"chain reduce-scatter", "chain", Goal::kReduceScatter},
    {"all-to-all", nullptr, Goal::kAllToAll},
    {"gather", nullptr, Goal::kGather},
    {"scatter", nullptr, Goal::kScatter},
    {"barrier", nullptr, Goal::kBarrier},
};

inline std::vector<Schedule> all_ranks(const Builder& builder, RankList order, int root, uint32_t lanes = 1) {
  const int n = count(order);
  const Hosts hosts = builder.hosts != nullptr ? builder.hosts(order) : Hosts{order};
  const Hosts slow = builder.slow != nullptr ? builder.slow(order) : Hosts{};
  return for_all_ranks(n, [&](int rank) {
    switch (builder.goal) {
      case Goal::kAllToAll: return all_to_all(n, rank);
      case Goal::kGather: return gather(n, rank, root);
      case Goal::kScatter: return scatter(n, rank, root);
      case Goal::kBarrier: return barrier(n, rank);
      default: break;
    }
    return schedule_of(builder.algorithm, builder.goal, {order, hosts, hosts, slow, rank, root, lanes});
  });
}

}  // namespace tutti::testing
