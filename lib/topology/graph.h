// This header: machines and the network between them as a graph, from hwloc's machine, NCCL's topology files and a
// cluster's description; and the order of ranks in which a ring is fastest on it. Not in libtutti.so: tools want it.
// Values; any thread.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "topology/cluster.h"
#include "topology/machine.h"

namespace tutti {

struct Graph {
  enum class Kind : uint8_t { kNetwork, kRack, kHost, kPart, kPciSwitch, kFabric, kNic, kGpu, kRank };
  struct Node {
    Kind kind = Kind::kPart;
    std::string name;
    int host = 0;
    std::string bus = {};  // on PCI, where it is known
    int sm = 0;            // of a GPU: NVIDIA's number of its generation, 90 for Hopper
  };
  // So much each way at once.
  struct Edge {
    int a = -1, b = -1;
    double bytes_per_second = 0, latency_ns = 0;
  };
  std::vector<Node> nodes;
  std::vector<Edge> edges;

  int add(Kind kind, const std::string& name);
  void join(int a, int b, double bytes_per_second, double latency_ns) {
    edges.push_back({a, b, bytes_per_second, latency_ns});
  }
  int gpu_at(std::string_view bus) const;  // -1: there is none
  // The GPUs; where there are none, the nodes that are ranks.
  std::vector<int> ranks() const;
};

// Whether every edge has two ends and a speed, and every rank a way to every other. `what` is for the sentence.
// kInvalidUsage names what is broken.
Result<void> check(const Graph& graph, const std::string& what);

// Parts and devices. A rank stands in each core. Speeds that hwloc does not know are round figures.
Graph graph_of(const Machine& machine);
// Hosts in racks, each like `host`, of which the NICs lead to the network; without any node: with one NIC and ranks
// as the cluster has them.
Graph graph_of(const Cluster& cluster, int n_hosts, const Graph& host);
// Of one of NVIDIA's links, by a GPU's generation (Graph::Node::sm), and how long it takes: round figures.
double nvlink_bytes_per_second(int sm);
inline constexpr double kNvLinkNs = 700;
// What NCCL_TOPO_DUMP_FILE writes. Errors name the file and the element.
Result<Graph> graph_from_nccl_xml(std::string_view text, const std::string& file);
// The same from a graph, so that NCCL can be given it as NCCL_TOPO_FILE, and what is read from it is this graph again:
// one host's NUMA nodes, PCIe switches, GPUs, NICs, and links between GPUs; not its cores. Speeds become those of the
// least PCIe link and the fewest links between GPUs that have them. kInvalidUsage: there are several hosts, no GPUs, or
// a GPU or a switch of which the PCI bus id is not known.
Result<std::string> nccl_xml(const Graph& graph);
// As text or an attribute, of any XML.
std::string xml_text(std::string_view text);
// Which way messages take: that on which 64 KiB take the least time if each node takes them in before it passes them
// on. Through no rank. Belongs to one thread; the graph stays.
class Routes {
 public:
  explicit Routes(const Graph& graph);
  struct Way {
    std::vector<int> edges;  // 2 * its number, + 1 from b to a
    double ns = 0;           // infinite: there is no way
  };
  const Way& way(int from, int to);
  // Of the rank's host, its node. -1: there is none.
  int nearest_nic(int rank);
  const Graph& graph() const { return graph_; }

 private:
  Way find(int from, int to) const;
  const Graph& graph_;
  std::vector<std::vector<int>> edges_of_;
  std::map<std::pair<int, int>, Way> ways_;
};

// A ring of ranks, each of which sends to the next one.
struct Order {
  std::vector<int> ranks;       // nodes
  double bytes_per_second = 0;  // of each message, if all are under way at once
  double strain = 0;            // of all edges together, the fullest most of all: less is better, at the same speed
};
Order measure(Routes& routes, std::vector<int> ranks);
// The best that is found: for a few ranks by exchanging, moving and turning round what stands in between; for many,
// host after host, the ranks of each as a ring of them would be best.
Order find_order(Routes& routes);

}  // namespace tutti
