// This header: links between GPUs, as NVIDIA's management library (NVML) tells of them. Not in libtutti.so: tools want
// it. Any thread, one at a time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "topology/graph.h"

namespace tutti {

struct NvLinks {
  struct Link {
    std::string from, to;  // PCI bus ids, as in Graph::Node; no `to`: a switch
    int count = 0;
  };
  std::vector<Link> links;
  std::map<std::string, int> sm;  // of each GPU, as in Graph::Node
};

// Asks the library. None where there is no such library or no driver; the log says so.
NvLinks find_nvlinks(const char* library = "libnvidia-ml.so.1");
// Joins those of the graph's GPUs that have them; all switches are one node.
void add_nvlinks(const NvLinks& found, Graph& graph);

}  // namespace tutti
