// The network between the job's hosts, probed with UDP packets that the first rank of each host sends to every address
// of the other hosts, which answer them.
#pragma once

#include <cstdint>
#include <vector>

#include "findings.h"

namespace tutti::doctor {

// From an address of one host to an address of another one.
struct Path {
  char from[80], to[80];  // "node1 (10.0.0.1)"
  char interface[16];     // through which packets leave
  int32_t sent, answered;
  double round_trip_us;     // the median
  double ahead_seconds;     // lead of the other host's clock
  int32_t mtu_bytes;        // of the interface
  int32_t largest_bytes;    // of a packet that arrives unfragmented, if one of that MTU does not; else the MTU
  int32_t is_told_largest;  // whether the network reports packets that are too large, so that TCP adapts
};

// Probes from this host, if this is its first rank. Collective; all ranks get all paths. Takes about 20 ms for each
// other host, more if packets are lost.
std::vector<Path> probe_paths(tuttiComm_t comm, Trouble* trouble);

Findings judge(const std::vector<Path>& paths);

}  // namespace tutti::doctor
