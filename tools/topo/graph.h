// This header: machines and the network between them as a graph, from hwloc's machine, NCCL's topology files and a
// cluster's description; and the order of ranks in which a ring is fastest on it. Values; any thread.
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
    int sm = 0;            // of a GPU: its compute capability, 90 for 9.0 (Hopper)
  };
  // Full duplex: the speed holds each way at once.
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

// Checks that every edge has two ends and a speed, and that every rank can reach every other. `what` is for the error
// message; kInvalidUsage says what is broken.
Result<void> check(const Graph& graph, const std::string& what);

// Parts and devices. Each core counts as a rank. Speeds that hwloc does not know are round figures.
Graph graph_of(const Machine& machine);
// Hosts in racks, each a copy of `host`, whose NICs lead to the network; if it has no nodes, with as many NICs and
// ranks as the cluster says.
Graph graph_of(const Cluster& cluster, int n_hosts, const Graph& host);
// The speed of one NVLink, by the GPU's generation (Graph::Node::sm), and its latency: round figures.
double nvlink_bytes_per_second(int sm);
inline constexpr double kNvLinkNs = 700;
// Reads what NCCL_TOPO_DUMP_FILE writes. Errors name the file and the element.
Result<Graph> graph_from_nccl_xml(std::string_view text, const std::string& file);
// Writes a graph for NCCL_TOPO_FILE; reading the result gives the same graph again: one host's NUMA nodes, PCIe
// switches, GPUs, NICs, and links between GPUs; not its cores. Speeds are rounded up to the slowest PCIe link and the
// fewest links between GPUs that reach them. kInvalidUsage: there are several hosts, no GPUs, or a GPU or switch
// without a known PCI bus id.
Result<std::string> nccl_xml(const Graph& graph);
// Asks NVIDIA's management library (NVML) about links between GPUs, and joins those of the graph's GPUs that have any;
// all switches are one node. Without the library or a driver adds none and logs why. One call at a time.
void add_nvlinks(Graph& graph, const char* library = "libnvidia-ml.so.1");
// Escapes text for the content or an attribute of any XML element.
std::string xml_text(std::string_view text);
// The way of a message: the one that takes 64 KiB in the least time if each node stores and forwards them, never
// through a rank. Belongs to one thread; the graph must outlive it.
class Routes {
 public:
  explicit Routes(const Graph& graph);
  struct Way {
    std::vector<int> edges;  // 2 * the edge's number, + 1 if from b to a
    double ns = 0;           // infinite: there is no way
  };
  const Way& way(int from, int to);
  // The node of the nearest NIC in the rank's host. -1: there is none.
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
  double bytes_per_second = 0;  // of each message if all are sent at once
  double strain = 0;            // load of all edges, most of it from the fullest; at the same speed less is better
};
Order measure(Routes& routes, std::vector<int> ranks);
// The best order found: for a few ranks by a local search that exchanges and moves ranks and reverses sections; for
// many, host by host, the ranks of each in the order of the best ring among them.
Order find_order(Routes& routes);

}  // namespace tutti
