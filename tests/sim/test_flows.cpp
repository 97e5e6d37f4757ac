// Wires are shared max-min fairly.
#include <algorithm>
#include <map>
#include <random>

#include "catch.h"
#include "networks.h"
#include "tools/sim/flows.h"

namespace tutti::sim::testing {
namespace {

constexpr uint64_t kBytes = 1 << 20;

// A network's wires form a graph general enough for routes that no real network has.
struct Sharing {
  const Network network;
  Flows flows;
  std::map<int, Route> routes;
  std::map<int, double> ends;

  explicit Sharing(int n_hosts) : network(network_of(plain_cluster(), n_hosts)), flows(network) {}
  void begin(int id, std::vector<int> wires) {
    Route route;
    for (const int wire : wires) route.wires[static_cast<size_t>(route.n_wires++)] = wire;
    routes[id] = route;
    flows.begin(id, route, kBytes, 0, 0);
  }
  void settle() {
    for (const auto& change : flows.settle(0)) ends[change.id] = change.ends_ns;
  }
  double speed(int id) const { return static_cast<double>(kBytes) / ends.at(id); }
  // By wire: its load, and its fastest flow.
  std::vector<std::pair<double, double>> load() const {
    std::vector<std::pair<double, double>> loads(network.wires().size());
    for (const auto& [id, route] : routes)
      for (int i = 0; i < route.n_wires; i++) {
        auto& [sum, fastest] = loads[static_cast<size_t>(route.wires[static_cast<size_t>(i)])];
        sum += speed(id);
        fastest = std::max(fastest, speed(id));
      }
    return loads;
  }
};

TEST_CASE("flows share a wire equally, and what some of them cannot use goes to others") {
  Sharing sharing(8);
  sharing.begin(0, {0});
  sharing.begin(1, {0, 1});
  sharing.begin(2, {1});
  sharing.begin(3, {1});
  sharing.settle();
  CHECK(sharing.speed(1) == about(kBytesPerNs / 3));
  CHECK(sharing.speed(2) == about(kBytesPerNs / 3));
  CHECK(sharing.speed(0) == about(kBytesPerNs * 2 / 3));
  sharing.flows.end(3);
  sharing.settle();
  CHECK(sharing.speed(2) == about(kBytesPerNs / 2));
  CHECK(sharing.speed(0) == about(kBytesPerNs / 2));
}

// The meaning of max-min fair: every flow crosses a full wire on which no other flow is faster.
TEST_CASE("every flow has a wire that holds it up, in random graphs") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 50; trial++) {
    Sharing sharing(8);
    const int n_flows = 1 + static_cast<int>(random() % 40), n_wires = static_cast<int>(sharing.network.wires().size());
    for (int id = 0; id < n_flows; id++) {
      std::vector<int> wires;
      for (uint32_t i = 0; i < 1 + random() % 4; i++) {
        const int wire = static_cast<int>(random() % static_cast<uint32_t>(n_wires));
        if (std::find(wires.begin(), wires.end(), wire) == wires.end()) wires.push_back(wire);
      }
      sharing.begin(id, wires);
      if (random() % 2 == 0) sharing.settle();
      // New flows replace some that have ended.
      if (id > 2 && random() % 4 == 0) {
        const int gone = static_cast<int>(random() % static_cast<uint32_t>(id));
        if (sharing.routes.erase(gone) > 0) sharing.flows.end(gone);
      }
    }
    sharing.settle();
    const auto loads = sharing.load();
    for (const auto& [sum, fastest] : loads) CHECK(sum <= kBytesPerNs * 1.000001);
    for (const auto& [id, route] : sharing.routes) {
      bool is_held = false;
      for (int i = 0; i < route.n_wires; i++) {
        const auto& [sum, fastest] = loads[static_cast<size_t>(route.wires[static_cast<size_t>(i)])];
        is_held |= sum > kBytesPerNs * 0.999999 && sharing.speed(id) > fastest * 0.999999;
      }
      CHECK(is_held);
    }
  }
}

}  // namespace
}  // namespace tutti::sim::testing
