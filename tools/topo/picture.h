// What tutti-topo shows: hosts, where each rank runs, how ranks reach each other. Plain values.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tools/topo/graph.h"
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
  bool is_real = false;  // a real group, not an invented one
};

// For a job that a launcher started; collective. Only rank 0's is complete; *rank is this rank.
Result<Picture> picture_of_group(int* rank);

// For hosts that need not exist: each is a file or hwloc's short form, "" for this machine, with that many ranks, each
// bound to a core. `cyclic`: ranks are dealt out to the hosts round-robin instead of host after host.
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

// A machine from a file, from hwloc's short form, or "" for this one.
Result<Machine> machine_named(const std::string& name);
// The graph of a machine ("this-host" is this one), or of a cluster (.json) each of whose hosts is like `host`.
Result<Graph> graph_named(const std::string& name, const std::string& host);
// The ring found in it.
std::string graph_text(const Graph& graph);

std::string to_text(const Picture& picture);
std::string to_svg(const Picture& picture);

}  // namespace tutti::topo
