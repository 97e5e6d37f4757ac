// What tutti-topo shows: hosts, where each rank runs, how ranks reach each other. Plain values.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "topology/graph.h"
#include "topology/layout.h"
#include "topology/machine.h"

namespace tutti::topo {

struct Host {
  std::string name;
  Machine machine;
};

struct Rank {
  size_t host = 0;
  std::vector<uint32_t> path;
  CpuSet cpus;
  std::map<int, std::string> routes;  // by peer: "tcp, because shm: it is on another host"
};

struct Picture {
  std::vector<Host> hosts;
  std::vector<Rank> ranks;
  Layout layout;
  bool is_real = false;  // a real group; else simulated
};

// Of a job that a launcher started; collective. Only rank 0's is complete: *rank tells.
Result<Picture> picture_of_group(int* rank);

// Of hosts that need not exist: each a file or hwloc's short form, "" for this machine, with so many ranks, each bound
// to a core. `cyclic`: ranks are dealt out to the hosts in turn instead of host after host.
struct Invented {
  std::vector<std::string> hosts;
  int ranks_per_host = 0;
  bool cyclic = false;
};
Result<Picture> invented_picture(const Invented& wish);

// "0 -> 4" for all neighbours in the ring and the trees.
std::vector<std::pair<int, int>> neighbours(const Layout& layout);
// What two ranks share: "package 0, NUMA node 1", "the host", "the network".
std::string shared_by(const Picture& picture, int a, int b);

// One that a file describes, hwloc's short form, or "" for this one.
Result<Machine> machine_named(const std::string& name);
// Of a machine ("this-host" is the one it runs on), or of a cluster (.json) of which each host is like `host`.
Result<Graph> graph_named(const std::string& name, const std::string& host);
// The ring found on it.
std::string graph_text(const Graph& graph);

std::string to_text(const Picture& picture);
std::string to_svg(const Picture& picture);

}  // namespace tutti::topo
