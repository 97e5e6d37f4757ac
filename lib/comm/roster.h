// This header: what the ranks of a group told each other when they met. Read once and shared by all ranks of a process;
// what is rarely needed stays packed. Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dial.h"
#include "comm/endpoints.h"
#include "debug/trace_files.h"
#include "exec/chunks.h"
#include "group/blobs.h"
#include "group/peers.h"
#include "plan/cost.h"
#include "topology/layout.h"
#include "topology/machine.h"

namespace tutti {

// What a rank knows about its host's place in the network. Speeds and latencies come from a file, else they are 0,
// except for the speed of its interfaces.
struct NetworkPlace {
  uint64_t bytes_per_second = 0, latency_ns = 0;
  uint64_t rack_bytes_per_second = 0, rack_latency_ns = 0;
  uint64_t round_trip_ns = 0;  // to where the ranks met, or to the rank that leads there
  uint32_t rack = 0;
  uint32_t sends_by_rate = 0;  // TCP sends by rate, regardless of losses
};

// What must be the same on all ranks of a group.
struct GroupSettings {
  uint32_t slot_bytes = 0;
  std::string algo;
  uint32_t deterministic = 0;
  uint32_t on_gpu = 0;  // whether its buffers are in GPU memory
  uint32_t encrypts = 0, majority = 0;
  uint64_t prices = 0;      // fingerprint of the price list
  std::string prices_from;  // a file; empty: from the library itself
  std::string order;
};

// Where a rank runs.
struct HostPlace {
  std::string host;
  ProcessId process;
  std::vector<uint32_t> path;  // to its place in the host's topology
  CpuSet cpus;
  HostId machine{};  // the one that has these CPUs
  uint32_t machine_cpus = 1;
  uint64_t cache_bytes = 0;
};

// What a rank tells the others about itself.
struct Introduction {
  uint32_t version;
  GroupSettings settings;
  HostPlace place;
  NetworkPlace network;
  Contact control;
  Addresses addresses;
  uint32_t connections = 1;  // at most, of a TCP link

  std::string to_bytes() const;
  static Result<Introduction> from_bytes(const std::string& bytes, int rank);
};

class Roster {
 public:
  // The process' roster for these introductions, one of which is that of `rank`. Errors: an introduction is invalid or
  // of another version; settings of two ranks differ (kInvalidUsage names both ranks and the setting).
  static Result<std::shared_ptr<const Roster>> of(const Blobs& introductions, int rank);
  // Whether the ranks of any group that this process is in outnumber the CPUs here: then a smaller group's ranks share
  // CPUs with others. `but` does not count: the group that a shrink leaves.
  static bool ranks_share_cpus(uint64_t but);

  Introduction operator[](int rank) const {
    return Introduction::from_bytes(blobs_[static_cast<size_t>(rank)], rank).value();
  }
  PeerWatch::Member member(int rank) const;
  int n_ranks() const { return static_cast<int>(blobs_.size()); }
  bool is_oversubscribed() const { return here.machine.oversubscription() > 1; }  // this machine, by this group

  // For people and tools that see traces of several groups: the same on all ranks, and different for every group.
  uint64_t group = 0;
  Layout layout;
  MessageSizes sizes;
  // Of the most oversubscribed machine, and of this one.
  Facts facts, here;
  CpuSet cpus_here;                   // that any rank of this machine may use
  std::vector<int> ranks_of_process;  // in rising order
  int ranks_of_host = 0;

 private:
  struct Known;
  static Known& known_;
  explicit Roster(const Blobs& introductions) : blobs_(introductions) {}
  static Result<std::shared_ptr<const Roster>> read(const Blobs& introductions, int rank);

  Blobs blobs_;
  bool agrees_ = true;  // whether all ranks have the same settings
};

}  // namespace tutti
