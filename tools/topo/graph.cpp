#include "tools/topo/graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>

namespace tutti {
namespace {

using Kind = Graph::Kind;

constexpr double kGB = 1e9;
// Round figures for what is not reported.
constexpr double kWithinPackage = 100 * kGB, kBetweenPackages = 20 * kGB, kPci = 16 * kGB, kPartNs = 50, kBusNs = 300;

// From a detail such as "NIC, 1000 Mb/s".
double speed_of_nic(const std::string& detail) {
  unsigned megabits = 0;
  const size_t comma = detail.find(", ");
  if (comma == detail.npos || sscanf(detail.c_str() + comma, ", %u Mb/s", &megabits) != 1) return kPci;
  return megabits * 1e6 / 8;
}

bool is_such_device(const Part& part, std::string_view kind) {
  return part.kind == Part::Kind::kDevice && part.detail.starts_with(kind);
}

bool has_hardware_nic(const Part& part) {
  return is_such_device(part, "NIC") || std::ranges::any_of(part.parts, has_hardware_nic);
}

// Bridges and the like lead to no other host, unless they are all there is, as in a container.
void add_part(Graph& graph, const Part& part, int holder, bool virtual_nics) {
  if (is_such_device(part, "virtual NIC") && !virtual_nics) return;
  const bool is_gpu = is_such_device(part, "GPU");
  const bool is_device = part.kind == Part::Kind::kDevice, is_core = part.kind == Part::Kind::kCore;
  const int node = graph.add(is_gpu      ? Kind::kGpu
                             : is_device ? Kind::kNic
                             : is_core   ? Kind::kRank
                                         : Kind::kPart,
                             part.name);
  graph.nodes.back().bus = part.bus;
  if (holder >= 0 && is_device)
    graph.join(holder, node, is_gpu ? kPci : speed_of_nic(part.detail), kBusNs);
  else if (holder >= 0)
    graph.join(holder, node, part.kind == Part::Kind::kPackage ? kBetweenPackages : kWithinPackage, kPartNs);
  if (is_core) return;  // its hardware threads are in the same place
  for (const Part& inner : part.parts) add_part(graph, inner, node, virtual_nics);
}

// A host with the cluster's NICs and ranks around one node.
Graph plain_host(const Cluster& cluster) {
  Graph host;
  const int middle = host.add(Kind::kHost, "host");
  for (int nic = 0; nic < cluster.nics_per_host; nic++)
    host.join(middle, host.add(Kind::kNic, format("NIC %d", nic)), cluster.nic.bytes_per_second, 0);
  for (int rank = 0; rank < cluster.ranks_per_host; rank++)
    host.join(middle, host.add(Kind::kRank, format("rank %d", rank)), cluster.local.bytes_per_second,
              cluster.local.latency_ns / 2);
  return host;
}

// One pass over all edges for each hop to the farthest node: machines and networks are not deep.
std::vector<bool> reached_from(const Graph& graph, int start) {
  std::vector<bool> seen(graph.nodes.size());
  seen[static_cast<size_t>(start)] = true;
  for (bool is_new = true; is_new;) {
    is_new = false;
    for (const Graph::Edge& edge : graph.edges) {
      const auto a = static_cast<size_t>(edge.a), b = static_cast<size_t>(edge.b);
      if (seen[a] != seen[b]) seen[a] = seen[b] = is_new = true;
    }
  }
  return seen;
}

}  // namespace

double nvlink_bytes_per_second(int sm) {
  return sm >= 100 ? 40e9 : sm < 70 && sm > 0 ? 18e9 : 20e9;
}

int Graph::add(Kind kind, const std::string& name) {
  nodes.push_back({kind, name});
  return static_cast<int>(nodes.size()) - 1;
}

int Graph::gpu_at(std::string_view bus) const {
  const auto found = std::ranges::find_if(nodes, [&](const Node& n) { return n.kind == Kind::kGpu && n.bus == bus; });
  return found == nodes.end() ? -1 : static_cast<int>(found - nodes.begin());
}

std::vector<int> Graph::ranks() const {
  for (const Kind kind : {Kind::kGpu, Kind::kRank}) {
    std::vector<int> found;
    for (size_t i = 0; i < nodes.size(); i++)
      if (nodes[i].kind == kind) found.push_back(static_cast<int>(i));
    if (!found.empty()) return found;
  }
  return {};
}

Result<void> check(const Graph& graph, const std::string& what) {
  const auto wrong = [&](const std::string& sentence) { return Error{Code::kInvalidUsage, what + ": " + sentence}; };
  const int n = static_cast<int>(graph.nodes.size());
  const auto name = [&](int node) {
    return node >= 0 && node < n ? graph.nodes[static_cast<size_t>(node)].name : "nothing";
  };
  for (const Graph::Edge& edge : graph.edges) {
    const std::string link = "the link from " + name(edge.a) + " to " + name(edge.b);
    if (edge.a < 0 || edge.a >= n || edge.b < 0 || edge.b >= n) return wrong(link + " has only one end");
    if (edge.a == edge.b) return wrong(link + " starts and ends at the same node");
    if (!(edge.bytes_per_second > 0 && std::isfinite(edge.bytes_per_second)))
      return wrong(link + format(" has speed %g, so nothing would ever arrive", edge.bytes_per_second));
    if (!(edge.latency_ns >= 0)) return wrong(link + format(" has latency %g ns", edge.latency_ns));
  }
  const std::vector<int> ranks = graph.ranks();
  if (ranks.empty()) return wrong("it has neither GPUs nor cores");
  const std::vector<bool> reached = reached_from(graph, ranks[0]);
  for (const int rank : ranks)
    if (!reached[static_cast<size_t>(rank)])
      return wrong("no link leads from " + name(ranks[0]) + " to " + name(rank) + ", directly or through others");
  return {};
}

Graph graph_of(const Machine& machine) {
  Graph graph;
  add_part(graph, machine.whole, -1, !has_hardware_nic(machine.whole));
  return graph;
}

Graph graph_of(const Cluster& cluster, int n_hosts, const Graph& host) {
  const Graph& like = host.nodes.empty() ? plain_host(cluster) : host;
  Graph graph;
  const int network = graph.add(Kind::kNetwork, "network");
  int rack = -1;
  for (int h = 0; h < n_hosts; h++) {
    if (h % cluster.hosts_per_rack == 0) {
      rack = graph.add(Kind::kRack, format("rack %d", h / cluster.hosts_per_rack));
      if (cluster.rack.bytes_per_second > 0)
        graph.join(network, rack, cluster.rack_bytes_per_second(h / cluster.hosts_per_rack),
                   cluster.rack.latency_ns / 2);
    }
    const int first = static_cast<int>(graph.nodes.size());
    for (const Graph::Edge& edge : like.edges)
      graph.join(first + edge.a, first + edge.b, edge.bytes_per_second, edge.latency_ns);
    int nic = 0;
    for (Graph::Node node : like.nodes) {
      node.name = format("host %d, ", h) + node.name;
      node.host = h;
      graph.nodes.push_back(node);
      if (node.kind == Kind::kNic)
        graph.join(static_cast<int>(graph.nodes.size()) - 1, rack, cluster.nic_bytes_per_second(h, nic++),
                   cluster.nic.latency_ns / 2);
    }
  }
  return graph;
}

Routes::Routes(const Graph& graph) : graph_(graph), edges_of_(graph.nodes.size()) {
  for (size_t e = 0; e < graph.edges.size(); e++) {
    edges_of_[static_cast<size_t>(graph.edges[e].a)].push_back(static_cast<int>(2 * e));
    edges_of_[static_cast<size_t>(graph.edges[e].b)].push_back(static_cast<int>(2 * e + 1));
  }
}

// Dijkstra's algorithm, until it reaches `to`.
Routes::Way Routes::find(int from, int to) const {
  constexpr double kBytes = 64 << 10;
  std::vector<double> least(graph_.nodes.size(), std::numeric_limits<double>::infinity());
  std::vector<int> by(graph_.nodes.size(), -1);
  using Entry = std::pair<double, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> todo;
  least[static_cast<size_t>(from)] = 0;
  for (todo.emplace(0, from); !todo.empty() && todo.top().second != to;) {
    const auto [ns, at] = todo.top();
    todo.pop();
    const Kind kind = graph_.nodes[static_cast<size_t>(at)].kind;
    const bool ends = at != from && (kind == Kind::kGpu || kind == Kind::kRank);
    if (ns > least[static_cast<size_t>(at)] || ends) continue;
    for (const int edge : edges_of_[static_cast<size_t>(at)]) {
      const Graph::Edge& e = graph_.edges[static_cast<size_t>(edge / 2)];
      const auto next = static_cast<size_t>(edge % 2 == 0 ? e.b : e.a);
      const double there = ns + e.latency_ns + kBytes / e.bytes_per_second * 1e9;
      if (there >= least[next]) continue;
      least[next] = there;
      by[next] = edge;
      todo.emplace(there, static_cast<int>(next));
    }
  }
  Way way{{}, least[static_cast<size_t>(to)]};
  for (int at = to; at != from && std::isfinite(way.ns);) {
    const int edge = by[static_cast<size_t>(at)];
    way.edges.push_back(edge);
    at = edge % 2 == 0 ? graph_.edges[static_cast<size_t>(edge / 2)].a : graph_.edges[static_cast<size_t>(edge / 2)].b;
  }
  std::reverse(way.edges.begin(), way.edges.end());
  return way;
}

const Routes::Way& Routes::way(int from, int to) {
  const auto found = ways_.find({from, to});
  return found != ways_.end() ? found->second : ways_[{from, to}] = find(from, to);
}

int Routes::nearest_nic(int rank) {
  int nearest = -1;
  for (size_t i = 0; i < graph_.nodes.size(); i++) {
    const int node = static_cast<int>(i);
    const bool is_here = graph_.nodes[i].host == graph_.nodes[static_cast<size_t>(rank)].host;
    if (graph_.nodes[i].kind != Kind::kNic || !is_here) continue;
    if (nearest < 0 || way(rank, node).ns < way(rank, nearest).ns) nearest = node;
  }
  return nearest;
}

}  // namespace tutti
