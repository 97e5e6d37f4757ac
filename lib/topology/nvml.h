// This header: links between GPUs, as NVIDIA's management library (NVML) tells of them. Not in libtutti.so: tools want
// it. Any thread, one at a time.
#pragma once

#include "topology/graph.h"

namespace tutti {

// Asks the library, and joins those of the graph's GPUs that have links; all switches are one node. None where there is
// no such library or no driver; the log says so.
void add_nvlinks(Graph& graph, const char* library = "libnvidia-ml.so.1");

}  // namespace tutti
