// This header: hosts, racks and the network between them, as a file describes them: one that a tuning file names, for
// the library, or the simulator's (tools/sim/README.md lists its fields). Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tutti {

// How a message gets to another rank. message_ns and byte_ns are CPU time, at either end.
struct Conduit {
  double bytes_per_second = 0;
  double latency_ns = 0;
  double message_ns = 0;
  double byte_ns = 0;
  double burst_bytes = 0;  // that pass at once after a pause, as with a token bucket
};

// What differs for one host, rank, rack or pair of hosts.
struct Exception {
  int host = -1, nic = -1;  // nic -1: all NICs of the host
  int rank = -1, rack = -1;
  int from_host = -1, to_host = -1;
  std::optional<double> bytes_per_second, slowdown, starts_late_ns, dies_ns;
};

// A host's CPUs.
struct ClusterCpus {
  int per_host = 0;            // 0: one for each rank
  bool are_shared = false;     // all hosts have the same CPUs: they are namespaces of one machine
  double summed_byte_ns = 0;   // cost of a byte that is summed
  double cache_bytes = 0;      // 0: any buffers fit
  double far_byte_ns = 0;      // extra cost of a byte if all ranks' buffers do not fit
  double evicted_byte_ns = 0;  // extra cost of a message's byte if cache_bytes are moved between sending and receiving
  double operation_ns = 0;     // cost of an operation for each rank before its first step, unless it is small
  double switch_ns = 0;        // for a CPU to switch to another rank
};

// The links of all ranks.
struct ClusterLinks {
  bool shares_memory = true;           // within a host
  bool rdma = false;                   // between hosts
  uint32_t slots = 0, slot_bytes = 0;  // of a link; 0: the library's defaults
};

struct Cluster {
  int racks = 0;  // 0: as many as the ranks need
  int hosts_per_rack = 1, ranks_per_host = 1;
  std::vector<std::string> hosts;  // names; "": an empty place
  int nics_per_host = 1;
  Conduit local;  // within a host: what each rank can send, and receive
  Conduit nic;    // between hosts: what each NIC can
  Conduit rack;   // between racks: all of a rack together; its message_ns and byte_ns are not used
  ClusterCpus cpus;
  ClusterLinks links;
  std::vector<Exception> exceptions;

  int ranks_per_rack() const { return hosts_per_rack * ranks_per_host; }
  // In ranks; 0: any number.
  int capacity() const { return racks * ranks_per_rack(); }
  double nic_bytes_per_second(int host, int index) const;
  double host_bytes_per_second(int host) const;  // with all its NICs as slow as the slowest
  double rack_bytes_per_second() const;          // of the slowest rack
  double rack_bytes_per_second(int rack) const;
  // A host's number, by its name or the part of it before the first dot. -1: there is no such host.
  int find_host(std::string_view name) const;
};

// `file` is for error messages. kInvalidUsage says which field is missing or impossible and what it may be.
Result<Cluster> cluster_from_json(std::string_view text, const std::string& file);
// The same for a file; fails also if it cannot be read, or if this build has no nlohmann-json. Sets *text, if not null.
Result<Cluster> read_cluster(const std::string& path, std::string* text = nullptr);

}  // namespace tutti
