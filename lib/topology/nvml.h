// This header: links between GPUs, as NVIDIA's management library (NVML) reports them. Not in libtutti.so: for tools
// only. Any thread, one at a time.
#pragma once

#include "topology/graph.h"

namespace tutti {

// Asks the library, and joins those of the graph's GPUs that have links; all switches are one node. Without the library
// or a driver adds none and logs why.
void add_nvlinks(Graph& graph, const char* library = "libnvidia-ml.so.1");

}  // namespace tutti
