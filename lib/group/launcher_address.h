// For launchers without a key-value store: all ranks compute where they meet and with which secret.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "group/bootstrap.h"

namespace tutti {

struct MeetingPoint {
  std::string host;    // where rank 0 runs
  uint16_t port = 0;   // where rank 0 listens, for one group after the other
  std::string secret;  // the job's: TUTTI_SECRET, or derived from what all ranks know of the job
};

// "host:port" or "[v6]:port".
Result<MeetingPoint> parse_host_port(const std::string& text, const char* variable);
Result<uint16_t> parse_port(const std::string& text, const char* variable);

// The first host of Slurm's compressed lists: "node[01-03,7],other5" gives "node01". Slurm starts rank 0 there unless
// it was told to distribute ranks arbitrarily. Empty when there is none.
std::string first_host(const std::string& node_list);

// 20000 to 29999, below Linux's ports for outgoing connections; spread so that neighbouring jobs do not meet.
uint16_t slurm_port(uint64_t job_id, uint64_t step_id);

// The secret of the `call`-th group: groups that use the same port one after the other never mix.
void mix_secret(const MeetingPoint& point, int call, uint8_t secret[16]);

// Rank 0 starts the root there once the previous group no longer uses the port; the others get the root's address. If
// that is a name of another host, they wait until rank 0 answers there, and look the name up again meanwhile.
Result<UniqueId> meet(const MeetingPoint& point, int rank, int call, Deadline deadline);

}  // namespace tutti
