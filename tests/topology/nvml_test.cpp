// Links between GPUs, read from a made-up NVIDIA library.
#include "tools/topo/graph.h"

#include "beside.h"
#include "catch.h"

using namespace tutti;

namespace {

const std::string g_fake_nvml = tutti_test::beside_program("libfake_nvml.so");

// "GPU 0000:10:00.0 - NVSwitch: 120 GB/s"
std::vector<std::string> edges_of(const Graph& graph) {
  std::vector<std::string> texts;
  for (const Graph::Edge& edge : graph.edges)
    texts.push_back(format("%s - %s: %g GB/s", graph.nodes[static_cast<size_t>(edge.a)].name.c_str(),
                           graph.nodes[static_cast<size_t>(edge.b)].name.c_str(), edge.bytes_per_second / 1e9));
  return texts;
}

}  // namespace

TEST_CASE("NVML: links between GPUs and to switches become the graph's") {
  Graph graph;
  for (const char* bus : {"10", "20", "30", "40", "50"}) {
    graph.add(Graph::Kind::kGpu, bus);
    graph.nodes.back().bus = format("0000:%s:00.0", bus);
  }
  add_nvlinks(graph, g_fake_nvml.c_str());
  CHECK(edges_of(graph) ==
        std::vector<std::string>{"10 - 20: 60 GB/s", "30 - NVSwitch: 120 GB/s", "40 - NVSwitch: 120 GB/s"});
  for (const int gpu : {0, 1, 2, 3}) CHECK(graph.nodes[static_cast<size_t>(gpu)].sm == 90);
}

TEST_CASE("NVML: a graph without its GPUs stays as it is, and so does one without the library") {
  Graph graph;
  graph.add(Graph::Kind::kRank, "core");
  add_nvlinks(graph, g_fake_nvml.c_str());
  CHECK(graph.nodes.size() == 1);
  Graph one;  // one of two joined GPUs
  one.add(Graph::Kind::kGpu, "10");
  one.nodes.back().bus = "0000:10:00.0";
  add_nvlinks(one, g_fake_nvml.c_str());
  CHECK(one.edges.empty());
  CHECK(one.nodes.size() == 1);  // and no unconnected switch
  add_nvlinks(one, "libtutti-no-such-library.so");
  add_nvlinks(one, "libc.so.6");  // a library without the functions
  CHECK(one.edges.empty());
}
