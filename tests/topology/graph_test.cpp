// Machines as graphs: what files say, errors in broken ones, and the orders of ranks that are found.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <tuple>

#include "beside.h"
#include "catch.h"
#include "contains.h"
#include "tools/topo/graph.h"

using namespace tutti;

namespace {

using tutti_test::beside_program;
using tutti_test::contains;
using Kind = Graph::Kind;

std::string text_of(const std::string& name) {
  std::ifstream file(beside_program("graphs/" + name));
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

Graph golden(const std::string& name) {
  auto graph = graph_from_nccl_xml(text_of(name), name);
  INFO((graph ? "" : graph.error().message));
  REQUIRE(graph);
  return std::move(graph).value();
}

int named(const Graph& graph, const std::string& name) {
  for (size_t i = 0; i < graph.nodes.size(); i++)
    if (graph.nodes[i].name == name) return static_cast<int>(i);
  FAIL("no node " + name);
  return -1;
}

// "GPU 0 > GPU 3 > ...", starting at the first one, in the direction in which the second has the lower number.
std::string ring_text(const Graph& graph, std::vector<int> ranks) {
  std::rotate(ranks.begin(), std::min_element(ranks.begin(), ranks.end()), ranks.end());
  if (ranks.size() > 2 && ranks[1] > ranks.back()) std::reverse(ranks.begin() + 1, ranks.end());
  std::string text;
  for (const int rank : ranks)
    text.append(text.empty() ? "" : " ").append(graph.nodes[static_cast<size_t>(rank)].name.substr(4));
  return text;
}

Order best_ring(const Graph& graph) {
  Routes routes(graph);
  return find_order(routes);
}

Cluster cluster_of(int hosts_per_rack, double rack_bytes_per_second) {
  Cluster cluster;
  cluster.hosts_per_rack = hosts_per_rack;
  cluster.nics_per_host = 8;
  cluster.nic = {50e9, 3000, 0, 0};
  cluster.rack = {rack_bytes_per_second, 1000, 0, 0};
  return cluster;
}

void check_same(const Graph& graph, const Graph& wanted) {
  REQUIRE(graph.nodes.size() == wanted.nodes.size());
  REQUIRE(graph.edges.size() == wanted.edges.size());
  for (size_t i = 0; i < wanted.nodes.size(); i++) {
    const Graph::Node &a = graph.nodes[i], &b = wanted.nodes[i];
    CHECK(std::tie(a.kind, a.name, a.host, a.bus, a.sm) == std::tie(b.kind, b.name, b.host, b.bus, b.sm));
  }
  for (size_t i = 0; i < wanted.edges.size(); i++) {
    const Graph::Edge &a = graph.edges[i], &b = wanted.edges[i];
    INFO(b.a << " to " << b.b << ": " << a.bytes_per_second << " for " << b.bytes_per_second);
    CHECK(std::tie(a.a, a.b, a.bytes_per_second, a.latency_ns) == std::tie(b.a, b.b, b.bytes_per_second, b.latency_ns));
  }
}

bool is_about(double value, double expected) {
  return std::abs(value - expected) < 1e-3 * expected;
}

}  // namespace

TEST_CASE("graph: what is written as NCCL's XML is the same graph when it is read, and has the same ring") {
  int n_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(beside_program("graphs"))) {
    const std::string name = entry.path().filename();
    INFO(name);
    const Graph graph = golden(name);
    const auto xml = nccl_xml(graph);
    REQUIRE(xml);
    INFO(xml.value());
    const auto again = graph_from_nccl_xml(xml.value(), "what was written");
    REQUIRE(again);
    check_same(again.value(), graph);
    CHECK(best_ring(again.value()).ranks == best_ring(graph).ranks);
    n_files++;
  }
  CHECK(n_files >= 5);
}

TEST_CASE("graph: speeds of links and NICs are written as they are") {
  Graph graph;
  const int node = graph.add(Kind::kPart, "NUMA node 3"), gpu = graph.add(Kind::kGpu, "GPU 7");
  graph.nodes.back().bus = "0000:01:00.0";
  graph.nodes.back().sm = 100;
  const int other = graph.add(Kind::kGpu, "GPU 9"), nic = graph.add(Kind::kNic, "mlx5_0");
  graph.nodes[static_cast<size_t>(other)].bus = "0000:02:00.0";
  graph.nodes[static_cast<size_t>(other)].sm = 100;
  graph.nodes.back().bus = "0000:03:00.1";
  const int second = graph.add(Kind::kNic, "mlx5_1");
  graph.nodes.back().bus = "0000:03:00.1";
  graph.join(node, gpu, 16 * 5 * 0.1 * 1e9, 300);  // 16 lanes of 5 GT/s, with 8 data bits in 10
  graph.join(node, other, 16e9, 300);
  graph.join(node, nic, 8 * 16 / 8.0 * 128 / 130 * 1e9, 300);  // the full rate of 8 lanes at 16 GT/s
  graph.join(node, second, 12.5e9, 300);
  graph.join(gpu, other, 18 * 40e9, 700);
  const auto xml = nccl_xml(graph);
  REQUIRE(xml);
  for (const char* words :
       {"<cpu numaid=\"3\">",
        "<pci busid=\"0000:01:00.0\" class=\"0x030200\" link_speed=\"5.0 GT/s PCIe\" link_width=\"16\">",
        "<gpu dev=\"7\" sm=\"100\">", "<nvlink target=\"0000:02:00.0\" count=\"18\" tclass=\"0x030200\"/>",
        "<pci busid=\"0000:02:00.0\" class=\"0x030200\" link_speed=\"\" link_width=\"0\">",
        "<pci busid=\"0000:03:00.1\" class=\"0x020000\" link_speed=\"8.0 GT/s PCIe\" link_width=\"16\">",
        "<net name=\"mlx5_1\" speed=\"100000\"/>"}) {
    INFO(words << " in\n" << xml.value());
    CHECK(contains(xml.value(), words));
  }
  const auto again = graph_from_nccl_xml(xml.value(), "F");
  REQUIRE(again);
  check_same(again.value(), graph);
  graph.edges.back().bytes_per_second = 2.25 * 40e9;  // two links are not enough
  CHECK(contains(nccl_xml(graph).value(), "count=\"3\""));
}

TEST_CASE("graph: a machine of hwloc's is written with its devices, and what has no place in NCCL's XML is refused") {
  Machine machine;
  const auto device = [](const char* name, const char* detail, const char* bus = "") {
    return Part{.kind = Part::Kind::kDevice, .name = name, .detail = detail, .bus = bus};
  };
  Part package{.kind = Part::Kind::kPackage, .name = "package 0"},
      numa{.kind = Part::Kind::kNode, .name = "NUMA node 1"};
  numa.parts = {{.kind = Part::Kind::kCore, .name = "core 0"},
                device("GPU", "GPU NVIDIA H100", "0000:1a:00.0"),
                device("eth0", "NIC, 25000 Mb/s", "0000:1b:00.0")};
  package.parts = {numa};
  machine.whole.parts = {package, device("a<\"&'>b", "NIC, 1000 Mb/s")};
  const auto xml = nccl_xml(graph_of(machine));
  REQUIRE(xml);
  const auto again = graph_from_nccl_xml(xml.value(), "F");
  REQUIRE(again);
  REQUIRE(again.value().nodes.size() == 4);
  CHECK(again.value().nodes[0].name == "NUMA node 1");
  CHECK(again.value().nodes[1].bus == "0000:1a:00.0");
  CHECK(again.value().nodes[1].kind == Kind::kGpu);
  CHECK(again.value().nodes[2].name == "eth0");
  CHECK(again.value().nodes[2].bus == "0000:1b:00.0");
  CHECK(again.value().edges[1].bytes_per_second == 25e9 / 8);
  CHECK(again.value().nodes[3].name == "a<\"&'>b");

  Machine without_nodes;
  without_nodes.whole.parts = {device("GPU", "GPU NVIDIA H100", "0000:1a:00.0")};
  const auto one = nccl_xml(graph_of(without_nodes));
  REQUIRE(one);
  CHECK(contains(one.value(), "<cpu numaid=\"0\">"));
  CHECK(graph_from_nccl_xml(one.value(), "F"));

  const auto refused = [](const Graph& graph) {
    const auto wrong = nccl_xml(graph);
    REQUIRE_FALSE(wrong);
    CHECK(wrong.error().code == Code::kInvalidUsage);
    return wrong.error().message;
  };
  machine.whole.parts[0].parts[0].parts[1].bus.clear();
  CHECK(contains(refused(graph_of(machine)), "GPU has no PCI bus id"));
  machine.whole.parts[0].parts[0].parts.resize(1);
  CHECK(contains(refused(graph_of(machine)), "there are no GPUs"));
  CHECK(contains(refused(graph_of(cluster_of(2, 0), 2, golden("dgx_h100.xml"))), "there are several hosts"));
}

TEST_CASE("graph: DGX H100 has NVSwitch among all GPUs, and each GPU a NIC on its own PCIe switch") {
  const Graph graph = golden("dgx_h100.xml");
  CHECK(graph.ranks().size() == 8);
  CHECK(is_about(best_ring(graph).bytes_per_second, 18 * 20e9));
  Routes routes(graph);
  for (int gpu = 0; gpu < 8; gpu++)
    CHECK(routes.nearest_nic(named(graph, format("GPU %d", gpu))) == named(graph, format("mlx5_%d", gpu)));
  CHECK(routes.way(named(graph, "GPU 0"), named(graph, "GPU 7")).edges.size() == 2);
}

TEST_CASE("graph: a cube mesh is two squares of double links, which single ones join") {
  const Graph graph = golden("cube_mesh.xml");
  const Order ring = best_ring(graph);
  CHECK(is_about(ring.bytes_per_second, 20e9));
  CHECK(ring_text(graph, ring.ranks) == "0 1 2 6 5 4 7 3");
}

TEST_CASE("graph: a full mesh is as fast in any order") {
  const Graph graph = golden("full_mesh.xml");
  CHECK(is_about(best_ring(graph).bytes_per_second, 48e9));
}

TEST_CASE("graph: no way goes through a GPU") {
  Graph graph;
  const int hub = graph.add(Kind::kPciSwitch, "switch");
  const int a = graph.add(Kind::kGpu, "A"), b = graph.add(Kind::kGpu, "B"), c = graph.add(Kind::kGpu, "C");
  for (const int gpu : {a, b, c}) graph.join(hub, gpu, 1e9, 300);
  graph.join(a, b, 40e9, 700);
  graph.join(b, c, 40e9, 700);
  Routes routes(graph);
  CHECK(routes.way(a, c).edges == std::vector<int>{1, 4});  // to the switch and on from there
  CHECK(routes.way(a, b).edges == std::vector<int>{6});
}

TEST_CASE("graph: two sockets are crossed once to and fro") {
  const Graph graph = golden("four_pcie.xml");
  const Order ring = best_ring(graph);
  CHECK(ring_text(graph, ring.ranks) == "0 1 2 3");
  CHECK(is_about(ring.bytes_per_second, 20e9));
  Routes routes(graph);
  CHECK(is_about(measure(routes, {ring.ranks[0], ring.ranks[2], ring.ranks[1], ring.ranks[3]}).bytes_per_second, 10e9));
  CHECK(routes.nearest_nic(ring.ranks[0]) == named(graph, "eth0"));
}

TEST_CASE("graph: a virtual machine that tells no speeds has usual ones") {
  const Graph graph = golden("vm.xml");
  CHECK(is_about(best_ring(graph).bytes_per_second, 16e9));
  CHECK(Routes(graph).nearest_nic(graph.ranks()[0]) == named(graph, "ens3"));
}

TEST_CASE("graph: two hosts with eight rails") {
  const Graph graph = graph_of(cluster_of(2, 0), 2, golden("dgx_h100.xml"));
  REQUIRE(check(graph, "rails"));
  const std::vector<int> ranks = graph.ranks();
  Routes routes(graph);
  for (const int rank : ranks) {
    const int nic = routes.nearest_nic(rank);
    const auto& way = routes.way(rank, ranks[rank == ranks[0] ? 15 : 0]).edges;
    const bool is_far = graph.nodes[static_cast<size_t>(rank)].host == 1 || rank == ranks[0];
    CHECK((!is_far || std::any_of(way.begin(), way.end(), [&](int by) {
      const Graph::Edge& edge = graph.edges[static_cast<size_t>(by / 2)];
      return edge.a == nic || edge.b == nic;
    })));
  }
  const Order ring = best_ring(graph);
  CHECK(is_about(ring.bytes_per_second, 50e9));
  int changes = 0;
  for (size_t i = 0; i < 16; i++)
    changes += graph.nodes[static_cast<size_t>(ring.ranks[i])].host !=
               graph.nodes[static_cast<size_t>(ring.ranks[(i + 1) % 16])].host;
  CHECK(changes == 2);
}

TEST_CASE("graph: racks that little leads out of are left once") {
  Cluster cluster = cluster_of(2, 1e9);
  cluster.ranks_per_host = 1;
  cluster.local = {100e9, 500, 0, 0};
  const Graph graph = graph_of(cluster, 6, {});
  REQUIRE(check(graph, "racks"));
  const Order ring = best_ring(graph);
  CHECK(is_about(ring.bytes_per_second, 1e9));
  cluster.exceptions.push_back({.host = 3, .bytes_per_second = 0.5e9});
  CHECK(is_about(best_ring(graph_of(cluster, 6, {})).bytes_per_second, 0.5e9));
  cluster.exceptions.back() = {.rack = 1, .bytes_per_second = 0.25e9};
  CHECK(is_about(best_ring(graph_of(cluster, 6, {})).bytes_per_second, 0.25e9));
  cluster.nics_per_host = 1;
  cluster.exceptions.back() = {.host = 3, .nic = 0, .bytes_per_second = 0.125e9};
  CHECK(is_about(best_ring(graph_of(cluster, 6, {})).bytes_per_second, 0.125e9));
  cluster.nics_per_host = 2;
  cluster.exceptions.back().nic = 1;
  const Graph two = graph_of(cluster, 6, {});
  for (const Graph::Edge& edge : two.edges) {
    if (edge.a == named(two, "host 3, NIC 0")) CHECK(edge.bytes_per_second == 50e9);
    if (edge.a == named(two, "host 3, NIC 1")) CHECK(edge.bytes_per_second == 0.125e9);
  }
}

TEST_CASE("graph: a machine of hwloc's has its cores as ranks") {
  const auto machine = synthetic_machine("pack:2 numa:4 core:2 pu:2");
  if (!machine) {
    WARN("skipped: " + machine.error().message);
    return;
  }
  const Graph graph = graph_of(machine.value());
  REQUIRE(check(graph, "EPYC"));
  CHECK(graph.ranks().size() == 16);
  const Order ring = best_ring(graph);
  CHECK(is_about(ring.bytes_per_second, 20e9));  // across the packages and back, once
}

TEST_CASE("graph: a virtual NIC counts only if there is no other") {
  Machine machine;
  machine.whole.parts = {{.kind = Part::Kind::kCore, .name = "core 0"},
                         {.kind = Part::Kind::kDevice, .name = "docker0", .detail = "virtual NIC"}};
  const auto nics = [&] {
    std::string names;
    for (const Graph::Node& node : graph_of(machine).nodes)
      if (node.kind == Kind::kNic) names += node.name + " ";
    return names;
  };
  CHECK(nics() == "docker0 ");
  Part package{.kind = Part::Kind::kPackage, .name = "package 0"};
  package.parts = {{.kind = Part::Kind::kDevice, .name = "eth0", .detail = "NIC, 1000 Mb/s"}};
  machine.whole.parts.push_back(package);
  CHECK(nics() == "eth0 ");
}

TEST_CASE("graph: what is wrong with a file is said") {
  struct Wrong {
    std::string text, says;
  };
  const std::string good = text_of("cube_mesh.xml");
  const auto with = [&](const std::string& what, const std::string& by) {
    std::string text = good;
    const size_t at = text.find(what);
    REQUIRE(at != text.npos);
    return text.replace(at, what.size(), by);
  };
  std::string deep = "<system>";
  for (int i = 0; i < 100; i++) deep += "<cpu>";
  for (const Wrong& wrong : std::vector<Wrong>{
           {"", "F, line 1: it has no system element"},
           {"<topology/>", "it has no system element"},
           {"<system>\n<cpu", "F, line 2: a '<' has no '>'"},
           {"<system>\n<cpu>", "F, line 2: the file ends inside cpu"},
           {"<system><cpu></system>", "</system> closes no open element; the innermost open one is 'cpu'"},
           {"<system a=b></system>", "has an attribute not of the form name=\"value\""},
           {"<system></system>", "F: it has neither GPUs nor cores"},
           {deep, "elements are nested deeper than in any machine"},
           {with("count=\"2\"", "count=\"0\""), "has the count '0', so its speed is 0"},
           {with("<nvlink target=\"0000:20:01.0\"", "<nvlink target=\"0000:99:01.0\""),
            "a link from GPU 0 leads to 0000:99:01.0, but there is no such GPU"},
           {with("busid=\"0000:20:00.0\"", "busid=\"0000:10:00.0\""),
            "the PCI device 0000:10:00.0 appears twice: the devices would form a cycle"}}) {
    const auto graph = graph_from_nccl_xml(wrong.text, "F");
    REQUIRE_FALSE(graph);
    CHECK(graph.error().code == Code::kInvalidUsage);
    CHECK(contains(graph.error().message, wrong.says));
  }
  // What newer files have besides CPUs is no CPU.
  const auto newer = graph_from_nccl_xml(with("<cpu ", "<fabric numaid=\"7\"/><cpu "), "F");
  REQUIRE(newer);
  CHECK(newer.value().nodes.size() == graph_from_nccl_xml(good, "F").value().nodes.size());
  for (size_t bytes = 0; bytes + 2 < good.size(); bytes += 13)  // a truncated file is never accepted
    CHECK_FALSE(graph_from_nccl_xml(good.substr(0, bytes), "F"));
  Graph graph;
  graph.add(Kind::kGpu, "A");
  graph.add(Kind::kGpu, "B");
  graph.join(0, 1, 0, 0);
  CHECK(contains(check(graph, "G").error().message, "G: the link from A to B has speed 0"));
  graph.edges[0] = {0, 0, 1, 0};
  CHECK(contains(check(graph, "G").error().message, "from A to A starts and ends at the same node"));
  graph.edges[0] = {0, 2, 1, 0};
  CHECK(contains(check(graph, "G").error().message, "from A to nothing has only one end"));
  graph.edges[0] = {0, 1, HUGE_VAL, 0};
  CHECK(contains(check(graph, "G").error().message, "from A to B has speed inf"));
  graph.edges[0] = {0, 1, 1, -5};
  CHECK(contains(check(graph, "G").error().message, "from A to B has latency -5 ns"));
  graph.edges.clear();
  CHECK(contains(check(graph, "G").error().message, "no link leads from A to B"));
}

namespace {

// Ranks and switches, joined so that all reach each other, plus some additional links.
Graph random_graph(std::mt19937& random, int n_ranks) {
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Graph graph;
  const int n_switches = 2 + draw(3);
  for (int i = 0; i < n_switches; i++) graph.add(Kind::kPciSwitch, format("switch %d", i));
  for (int i = 1; i < n_switches; i++) graph.join(draw(i), i, 1e9 * (1 + draw(20)), 300);
  for (int i = 0; i < n_ranks; i++) graph.join(draw(n_switches), graph.add(Kind::kGpu, format("GPU %d", i)), 16e9, 300);
  for (int i = 0; i < 2 * n_ranks; i++) {
    const int a = n_switches + draw(n_ranks), b = n_switches + draw(n_ranks);
    if (a != b) graph.join(a, b, 1e9 * (1 + draw(40)), 700);
  }
  return graph;
}

double best_of_all(Routes& routes) {
  std::vector<int> order = routes.graph().ranks();
  double best = 0;
  do best = std::max(best, measure(routes, order).bytes_per_second);
  while (std::next_permutation(order.begin(), order.end()));
  return best;
}

}  // namespace

TEST_CASE("graph: rings are as fast as the best of all orders") {
  std::mt19937 random(28);
  for (int i = 0; i < 20; i++) {
    const int n = 5 + i % 3;
    const Graph graph = random_graph(random, n);
    REQUIRE(check(graph, "random"));
    Routes routes(graph);
    INFO("graph " << i << ", " << n << " ranks");
    CHECK(find_order(routes).bytes_per_second >= 0.98 * best_of_all(routes));
  }
}

TEST_CASE("graph: of many ranks those of hosts that are not alike have each a ring of their own") {
  Graph graph;
  const int network = graph.add(Kind::kNetwork, "network");
  for (int host = 0; host < 5; host++) {
    const int hub = graph.add(Kind::kPciSwitch, "switch"), first = hub + 1;
    graph.join(network, hub, 1e9, 1000);
    for (int i = 0; i < 4; i++) graph.join(hub, graph.add(Kind::kGpu, format("GPU %d", i)), 1e9, 300);
    for (int node = hub; node < first + 4; node++) graph.nodes[static_cast<size_t>(node)].host = host;
    std::vector<int> ring = {first, first + 1, first + 2, first + 3};
    if (host == 1) std::swap(ring[1], ring[2]);
    for (size_t i = 0; i < 4; i++) graph.join(ring[i], ring[(i + 1) % 4], 40e9, 700);
  }
  const Order order = best_ring(graph);
  REQUIRE(order.ranks.size() == 20);
  Routes routes(graph);
  for (size_t i = 0; i < 20; i++)  // by the links of the ring
    if (i % 4 != 0) CHECK(routes.way(order.ranks[i - 1], order.ranks[i]).edges.size() == 1);
}

TEST_CASE("graph: an order for 128 hosts with 8 GPUs each") {
  const Graph graph = graph_of(cluster_of(16, 400e9), 128, golden("dgx_h100.xml"));
  const Order ring = best_ring(graph);
  CHECK(ring.ranks.size() == 1024);
  CHECK(is_about(ring.bytes_per_second, 50e9));
}
