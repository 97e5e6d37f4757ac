// Rings in a graph, as text.
#include <algorithm>

#include "base/env.h"
#include "base/file.h"
#include "picture.h"

namespace tutti::topo {
namespace {

// From a file of NCCL's, or a value of --host.
Result<Graph> machine_graph(const std::string& name) {
  if (name == "this-host") {
    TUTTI_TRY_ASSIGN(const Machine machine, discover_all());
    Graph graph = graph_of(machine);
    if (!env_is_set("TUTTI_TOPO_FILE")) add_nvlinks(graph);
    return graph;
  }
  const auto text = read_file(name);
  if (text && text.value().find("<system") != std::string::npos) return graph_from_nccl_xml(text.value(), name);
  TUTTI_TRY_ASSIGN(const Machine machine, machine_named(name));
  return graph_of(machine);
}

Result<Graph> graph_unchecked(const std::string& name, const std::string& host) {
  if (!name.ends_with(".json")) return machine_graph(name);
  TUTTI_TRY_ASSIGN(const Cluster cluster, read_cluster(name));
  Graph like;  // as the cluster describes its hosts
  if (!host.empty()) {
    TUTTI_TRY_ASSIGN(like, machine_graph(host));
  }
  constexpr int kMostHosts = 4096, kMostThere = 64;
  const int64_t n_hosts = int64_t{std::max(cluster.racks, 1)} * cluster.hosts_per_rack;
  if (n_hosts > kMostHosts || std::max(cluster.ranks_per_host, cluster.nics_per_host) > kMostThere)
    return Error{Code::kInvalidUsage,
                 name + format(": more than %d hosts, or %d ranks or NICs on each of them", kMostHosts, kMostThere)};
  return graph_of(cluster, static_cast<int>(n_hosts), like);
}

}  // namespace

Result<Graph> graph_named(const std::string& name, const std::string& host) {
  TUTTI_TRY_ASSIGN(Graph graph, graph_unchecked(name, host));
  TUTTI_TRY(check(graph, name));
  return graph;
}

std::string graph_text(const Graph& graph) {
  Routes routes(graph);
  const std::vector<int> ranks = graph.ranks();
  const Order ring = find_order(routes);
  std::string text = format("%zu nodes, %zu links, %zu ranks\n", graph.nodes.size(), graph.edges.size(), ranks.size());
  if (ranks.size() > 1) text += format("ring: %.1f GB/s on each of its ways at once\n", ring.bytes_per_second / 1e9);
  for (size_t i = 0; i < ring.ranks.size(); i++) {
    const int rank = ring.ranks[i], next = ring.ranks[(i + 1) % ring.ranks.size()], nic = routes.nearest_nic(rank);
    text += "  " + graph.nodes[static_cast<size_t>(rank)].name;
    if (nic >= 0) text += ", nearest NIC " + graph.nodes[static_cast<size_t>(nic)].name;
    text += format("; %zu links to the next one, %.1f us\n", routes.way(rank, next).edges.size(),
                   routes.way(rank, next).ns / 1e3);
  }
  return text;
}

}  // namespace tutti::topo
