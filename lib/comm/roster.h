// This header: what the ranks of a group have told each other when they met. Read once for all ranks of a process,
// which share it; what is rarely asked for stays packed. Immutable; any thread.
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

// What a rank knows of its host's place in the network. Speeds and latencies are as a file says, or 0, but for the
// speed of its interfaces.
struct NetworkPlace {
  uint64_t bytes_per_second = 0, latency_ns = 0;
  uint64_t rack_bytes_per_second = 0, rack_latency_ns = 0;
  uint64_t round_trip_ns = 0;  // to where the ranks meet, or to who leads there
  uint32_t rack = 0;
  uint32_t sends_by_rate = 0;  // its TCP, whatever is lost
};

// What all ranks of a group have to do alike.
struct GroupSettings {
  uint32_t slot_bytes = 0;
  std::string algo;
  uint32_t deterministic = 0;
  uint32_t on_gpu = 0;  // where its buffers are
  uint32_t encrypts = 0;
  uint64_t prices = 0;      // their fingerprint
  std::string prices_from;  // a file; empty: from the library itself
  std::string order;
};

// Where a rank runs.
struct HostPlace {
  std::string host;
  ProcessId process;
  std::vector<uint32_t> path;  // to its place on the host
  CpuSet cpus;
  HostId machine{};  // whose CPUs these are
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
  uint32_t connections = 1;  // of a TCP link at most

  std::string to_bytes() const;
  static Result<Introduction> from_bytes(const std::string& bytes, int rank);
};

class Roster {
 public:
  // The process' own for these introductions, one of which is of `rank`. Errors: a rank's introduction is none, or of
  // another version; ranks that are to do things differently (kInvalidUsage names both and the setting).
  static Result<std::shared_ptr<const Roster>> of(const Blobs& introductions, int rank);

  Introduction operator[](int rank) const {
    return Introduction::from_bytes(blobs_[static_cast<size_t>(rank)], rank).value();
  }
  PeerWatch::Member member(int rank) const;
  int n_ranks() const { return static_cast<int>(blobs_.size()); }

  // For people and their tools, who see the traces of several groups: what all ranks know and no other group has.
  uint64_t group = 0;
  Layout layout;
  MessageSizes sizes;
  // Of the machine where ranks are most in each other's way, and of this one.
  Facts facts, here;
  CpuSet cpus_here;                   // that any of its ranks may use
  std::vector<int> ranks_of_process;  // in rising order
  int ranks_of_host = 0;

 private:
  explicit Roster(const Blobs& introductions) : blobs_(introductions) {}
  static Result<std::shared_ptr<const Roster>> read(const Blobs& introductions, int rank);

  Blobs blobs_;
  bool agrees_ = true;  // all ranks do things alike
};

}  // namespace tutti
