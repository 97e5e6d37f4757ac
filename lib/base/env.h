// Every environment variable that Tutti reads, in one table (env.cpp): name, default, range, meaning.
// Values are read when asked for, so a test may set them between communicators.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tutti {

struct EnvEntry {
  const char* name;
  const char* fallback;  // as one would write it in the environment
  int64_t min, max;      // for numbers; min > max: not a number
  const char* help;
  const char* unit = "";  // "seconds", or "bytes": only these take K, M and G
};

std::span<const EnvEntry> env_table();
// Of one of these names: any other ends the process.
const EnvEntry& env_entry(std::string_view name);

// The variable's text, or its default. Never fails. In a privileged program (set-user-ID, say) the variables that name
// files always have their defaults.
std::string env_string(std::string_view name);
// The same of one that names a file to be used later: absolute, because the program may change its folder meanwhile.
std::string env_path(std::string_view name);
bool env_is_set(std::string_view name);
// The variable as a whole number; those in bytes take K, M and G. An error names the variable, its value, the unit and
// the valid range.
Result<int64_t> env_int(std::string_view name);

// TUTTI_PORT_RANGE; 0 to 0 if it is not set.
struct PortRange {
  uint16_t first = 0, last = 0;
};
Result<PortRange> env_port_range();

// Validates the variables that are set and warns of unknown TUTTI_ ones (with the nearest name). Called by every
// communicator's creation, so that a typo is found at the start and not in a hang.
Result<void> env_check();

}  // namespace tutti
