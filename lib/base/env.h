// Every environment variable that Tutti reads, in one table (env.cpp): name, default, range, meaning.
// Values are read when asked for, so a test may set them between communicators.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace tutti {

enum class Env : int {
  kLog,
  kLogFile,
  kTraceDir,
  kTraceFile,
  kTraceOnSigterm,
  kMetricsFile,
  kInitTimeout,
  kOpTimeout,
  kSocketIfname,
  kPortRange,
  kPort,
  kTransports,
  kTransportPlugin,
  kAlgo,
  kOrder,
  kProto,
  kTuneFile,
  kTopoFile,
  kTopoDump,
  kDeterministic,
  kEncrypt,
  kTcpConnections,
  kTcpTimeout,
  kTcpSegmentBytes,
  kIbHca,
  kIbGidIndex,
  kIbServiceLevel,
  kIbTrafficClass,
  kIbPkey,
  kIbTimeout,
  kIbRetries,
  kIbQueues,
  kIbPinBytes,
  kGpuDirect,
  kSlots,
  kSlotBytes,
  kNonTemporalBytes,
  kCpuIsa,
  kRank,
  kNRanks,
  kRoot,
  kSecret,
  kLibrary,
  kCount_,
};

struct EnvEntry {
  Env id;
  const char* name;
  const char* fallback;  // as one would write it in the environment
  int64_t min, max;      // for numbers; min > max: not a number
  const char* help;
};

std::span<const EnvEntry> env_table();
const EnvEntry& env_entry(Env id);

// The variable's text, or its default. Never fails. In a privileged program (set-user-ID, say) the variables that name
// files always have their defaults.
std::string env_string(Env id);
// The same of one that names a file to be used later: absolute, because the program may change its folder meanwhile.
std::string env_path(Env id);
bool env_is_set(Env id);
// The variable as a whole number; sizes take K, M and G. An error names the variable, its value and the valid range.
Result<int64_t> env_int(Env id);

// TUTTI_PORT_RANGE; 0 to 0 if it is not set.
struct PortRange {
  uint16_t first = 0, last = 0;
};
Result<PortRange> env_port_range();

// Validates the variables that are set and warns of unknown TUTTI_ ones (with the nearest name). Called by every
// communicator's creation, so that a typo is found at the start and not in a hang.
Result<void> env_check();

}  // namespace tutti
