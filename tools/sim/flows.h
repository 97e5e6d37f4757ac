// This header: messages under way, and how fast each goes: all that cross a wire share it max-min fairly, so no flow
// could be faster without slowing down one that is not faster. When a flow begins or ends, only flows that share wires
// with it, directly or through others, are computed again. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/sim/network.h"

namespace tutti::sim {

class Flows {
 public:
  explicit Flows(const Network& network);

  // `id` is any small number that no other flow has now; `at_once` of the bytes take no time. The speed is known after
  // the next settle().
  void begin(int id, const Route& route, uint64_t bytes, double at_once, double now_ns);
  void end(int id);
  struct Change {
    int id;
    double ends_ns;  // if nothing else changes
  };
  // The flows whose speed has changed since the last call.
  std::span<const Change> settle(double now_ns);

 private:
  struct Flow {
    Route route;
    double left = 0, speed = 0, since_ns = 0;
    uint32_t seen = 0;
    bool is_fixed = false;
  };
  struct Wire {
    std::vector<int> flows;
    double left = 0;  // not given to any flow yet
    int unfixed = 0;
    uint32_t seen = 0;
  };
  Flow& flow(int id) { return flows_[static_cast<size_t>(id)]; }
  Wire& wire(int index) { return wires_[static_cast<size_t>(index)]; }
  void see(int wire);
  void find_component();
  double least_share() const;
  void fix(int wire, double speed, double now_ns);

  std::span<const double> speeds_;
  std::vector<Wire> wires_;
  std::vector<Flow> flows_;
  std::vector<int> touched_, component_;  // wires
  std::vector<Change> changes_;
  uint32_t epoch_ = 0;
};

}  // namespace tutti::sim
