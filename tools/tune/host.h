// The file that tutti-sim reads (--topology): the hosts on which something was measured, and what messages cost there.
#pragma once

#include <string>

#include "samples.h"

namespace tutti::tune {

// Of what was measured over "shm" or "tcp" on one host, or over the "network" between some that have equally many
// ranks; they may be "namespaces" of one machine.
perf::Status describe_hosts(const std::vector<Sample>& samples, const std::string& way, std::string* json);

}  // namespace tutti::tune
