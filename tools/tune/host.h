// The file that tutti-sim reads (--topology): the hosts on which something was measured, and what messages cost there.
#pragma once

#include <string>

#include "samples.h"

namespace tutti::tune {

// From measurements over "shm" or "tcp" on one host, or over the "network" between hosts with equally many ranks, which
// may be "namespaces" of one machine.
perf::Status describe_hosts(const std::vector<Sample>& samples, const std::string& way, std::string* json);

}  // namespace tutti::tune
