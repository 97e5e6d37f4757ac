// sim: how long the library's own schedules take on hosts and networks that are not here. Nothing of it is in
// libtutti.so. This header: what such machines are like, as values that a file describes (README.md has its fields).
// Immutable once read; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tutti::sim {

// What the library takes: lib/comm.
inline constexpr uint32_t kSharedSlotBytes = 128 << 10, kSocketSlotBytes = 576 << 10;

// How a message gets to another rank. The last two are of the CPUs' time, at either end.
struct Way {
  double bytes_per_second = 0;
  double latency_ns = 0;
  double message_ns = 0;
  double byte_ns = 0;
};

// What is otherwise with one host, rank, rack or pair of hosts.
struct Exception {
  int host = -1, nic = -1;  // nic -1: all of the host
  int rank = -1, rack = -1;
  int from_host = -1, to_host = -1;
  std::optional<double> bytes_per_second, slowdown, starts_late_ns;
};

struct Cluster {
  int racks = 0;  // 0: as many as the ranks need
  int hosts_per_rack = 1, ranks_per_host = 1;
  int nics_per_host = 1;
  int cpus_per_host = 0;  // 0: one for each rank
  Way local;              // within a host: what each rank can send, and receive
  Way nic;                // between hosts: what each NIC can
  Way rack;               // between racks: all of a rack together; its message_ns and byte_ns are not used
  double summed_byte_ns = 0;
  uint32_t slots = 4, slot_bytes = 0;  // of a link; 0: what the library takes
  std::vector<Exception> exceptions;

  int ranks_per_rack() const { return hosts_per_rack * ranks_per_host; }
  // 0: any number.
  int capacity() const { return racks * ranks_per_rack(); }
};

// `file` is for sentences. kInvalidUsage says which field is missing or impossible and what it may be.
Result<Cluster> cluster_from_json(std::string_view text, const std::string& file);

}  // namespace tutti::sim
