// This header: hosts, racks and the network between them, as a file describes them: the library's, when a tuning file
// names it, and the simulator's (lib/sim/README.md has its fields). Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tutti {

// How a message gets to another rank. The last two are of the CPUs' time, at either end.
struct Conduit {
  double bytes_per_second = 0;
  double latency_ns = 0;
  double message_ns = 0;
  double byte_ns = 0;
  double burst_bytes = 0;  // that pass at once after a pause, as through a token bucket
};

// What is otherwise with one host, rank, rack or pair of hosts.
struct Exception {
  int host = -1, nic = -1;  // nic -1: all of the host
  int rank = -1, rack = -1;
  int from_host = -1, to_host = -1;
  std::optional<double> bytes_per_second, slowdown, starts_late_ns, dies_ns;
};

// Of a host.
struct ClusterCpus {
  int per_host = 0;            // 0: one for each rank
  bool are_shared = false;     // all hosts have the same ones: they are namespaces of one machine
  double summed_byte_ns = 0;   // what a byte costs that is added up
  double cache_bytes = 0;      // 0: room for any buffers
  double far_byte_ns = 0;      // what a byte costs more if all ranks' buffers do not fit
  double evicted_byte_ns = 0;  // of a message, if so much has been moved between sending and receiving it
  double operation_ns = 0;     // what an operation costs each rank before its first step, unless it is a small one
  double switch_ns = 0;        // until a CPU goes on with another rank
};

// Of all ranks.
struct ClusterLinks {
  bool shares_memory = true;           // within a host
  bool rdma = false;                   // between hosts
  uint32_t slots = 0, slot_bytes = 0;  // of a link; 0: what the library takes
};

struct Cluster {
  int racks = 0;  // 0: as many as the ranks need
  int hosts_per_rack = 1, ranks_per_host = 1;
  std::vector<std::string> hosts;  // names; "": nobody stands there
  int nics_per_host = 1;
  Conduit local;  // within a host: what each rank can send, and receive
  Conduit nic;    // between hosts: what each NIC can
  Conduit rack;   // between racks: all of a rack together; its message_ns and byte_ns are not used
  ClusterCpus cpus;
  ClusterLinks links;
  std::vector<Exception> exceptions;

  int ranks_per_rack() const { return hosts_per_rack * ranks_per_host; }
  // 0: any number.
  int capacity() const { return racks * ranks_per_rack(); }
  double nic_bytes_per_second(int host, int index) const;
  // By its slowest NIC, and of the slowest rack.
  double host_bytes_per_second(int host) const;
  double rack_bytes_per_second() const;
  double rack_bytes_per_second(int rack) const;
  // Its number, by its name or what that has before the first dot. -1: there is none.
  int find_host(std::string_view name) const;
};

// `file` is for sentences. kInvalidUsage says which field is missing or impossible and what it may be.
Result<Cluster> cluster_from_json(std::string_view text, const std::string& file);
// The same, and where the file cannot be read, or this build has no nlohmann-json.
Result<Cluster> read_cluster(const std::string& path);

// Hosts with 8 GPUs and 8 NICs of 400 Gb/s each, as many as wanted, in one rack: round figures of such machines.
Cluster usual_cluster();

}  // namespace tutti
