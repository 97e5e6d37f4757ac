// Measures the network between the hosts of a job, and describes it for the library and the simulator.
#pragma once

#include <string>

#include "../perf/team.h"

namespace tutti::tune {

// All ranks call it; the first of each host sends and receives. Rank 0 prints the racks, shows progress on a terminal,
// and receives the description: JSON, see tools/sim/README.md.
perf::Status measure_network(perf::Team& team, std::string* json);

}  // namespace tutti::tune
