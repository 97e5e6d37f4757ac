// This header: which rank has which CPU, and which ranks wait for one. A rank keeps its CPU until it gives it up, and
// takes the same one again if that is free. One thread.
#pragma once

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "sim/network.h"

namespace tutti::sim {

class Cpus {
 public:
  explicit Cpus(const Network& network) : network_(network), ranks_(static_cast<size_t>(network.n_ranks())) {
    const Cluster& cluster = network.cluster();
    const int here = cluster.cpus.are_shared ? network.n_ranks() : cluster.ranks_per_host;
    const int n = cluster.cpus.per_host > 0 ? cluster.cpus.per_host : here;
    hosts_.resize(static_cast<size_t>(network.n_hosts()), {std::vector<Cpu>(static_cast<size_t>(n)), {}});
    for (size_t r = 0; r < ranks_.size(); r++) ranks_[r].cpu = static_cast<size_t>(static_cast<int>(r) % here % n);
  }

  // Takes a CPU: nanoseconds until the rank has it. Below 0: none is free, and the rank waits until next() names it.
  double take(int index) {
    Rank& rank = ranks_[static_cast<size_t>(index)];
    if (rank.has_cpu) return 0;
    Host& host = host_of(index);
    if (!host.cpus[rank.cpu].is_free) {
      const auto found = std::find_if(host.cpus.begin(), host.cpus.end(), [](const Cpu& cpu) { return cpu.is_free; });
      if (found == host.cpus.end()) {
        if (!std::exchange(rank.waits, true)) host.waiting.push_back(index);
        return -1;
      }
      rank.cpu = static_cast<size_t>(found - host.cpus.begin());
    }
    Cpu& taken = host.cpus[rank.cpu];
    taken.is_free = false;
    rank.has_cpu = true;
    const int last = std::exchange(taken.last_rank, index);
    return last == index || last < 0 ? 0 : network_.cluster().cpus.switch_ns;
  }

  void give_up(int index) {
    Rank& rank = ranks_[static_cast<size_t>(index)];
    if (std::exchange(rank.has_cpu, false)) host_of(index).cpus[rank.cpu].is_free = true;
  }

  // The rank that has waited longest for a CPU of this rank's host; -1: none.
  int next(int index) {
    std::deque<int>& waiting = host_of(index).waiting;
    if (waiting.empty()) return -1;
    const int first = waiting.front();
    waiting.pop_front();
    ranks_[static_cast<size_t>(first)].waits = false;
    return first;
  }

 private:
  struct Cpu {
    int last_rank = -1;
    bool is_free = true;
  };
  struct Host {
    std::vector<Cpu> cpus;
    std::deque<int> waiting;
  };
  struct Rank {
    size_t cpu = 0;  // the one of its host that it has or had last
    bool has_cpu = false, waits = false;
  };
  Host& host_of(int rank) {
    return hosts_[network_.cluster().cpus.are_shared ? 0 : static_cast<size_t>(network_.host_of(rank))];
  }

  const Network& network_;
  std::vector<Host> hosts_;
  std::vector<Rank> ranks_;
};

}  // namespace tutti::sim
