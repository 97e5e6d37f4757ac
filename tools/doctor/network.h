// The network between the job's hosts, probed by UDP packets that the first rank of each host sends to every address of
// the other hosts, which send them back.
#pragma once

#include <cstdint>
#include <vector>

#include "findings.h"

namespace tutti::doctor {

// From an address of one host to one of another.
struct Path {
  char from[80], to[80];  // "node1 (10.0.0.1)"
  char interface[16];     // by which the packets leave
  int32_t sent, answered;
  double round_trip_us;     // the median
  double ahead_seconds;     // the other host's clock
  int32_t mtu_bytes;        // of the interface
  int32_t largest_bytes;    // packet that arrives unfragmented, if one of that MTU does not; else the MTU
  int32_t is_told_largest;  // the network reports packets that are too large, so that TCP learns it
};

// Probes from this host, if this is its first rank. Collective; all ranks get the paths of all. Takes about 20 ms for
// each other host, more if packets are lost.
std::vector<Path> probe_paths(tuttiComm_t comm, Trouble* trouble);

Findings judge(const std::vector<Path>& paths);

}  // namespace tutti::doctor
