// Measures collectives with each algorithm and with the library's own choice, interleaved in the same processes.
#pragma once

#include "../perf/options.h"
#include "../perf/team.h"
#include "samples.h"

namespace tutti::tune {

// All ranks call it. Over `transports` ("": the library's choice). Rank 0 prints a row for each operation and size to
// stdout, a progress line to a terminal on stderr, and receives the samples.
perf::Status measure(const perf::Options& options, const std::string& transports, perf::Team& team,
                     std::vector<Sample>* samples);

}  // namespace tutti::tune
