#include "tools/sim/flows.h"

#include <algorithm>
#include <limits>

namespace tutti::sim {
namespace {

// Shares that differ by a smaller factor count as equal, because of rounding.
constexpr double kSame = 1 + 1e-9;

}  // namespace

Flows::Flows(const Network& network) : speeds_(network.wires()), wires_(speeds_.size()) {}

void Flows::begin(int id, const Route& route, uint64_t bytes, double at_once, double now_ns) {
  if (static_cast<size_t>(id) >= flows_.size()) flows_.resize(static_cast<size_t>(id) + 1);
  flow(id) = {.route = route, .left = static_cast<double>(bytes) - at_once, .since_ns = now_ns};
  for (const int index : route.used()) {
    wire(index).flows.push_back(id);
    touched_.push_back(index);
  }
}

void Flows::end(int id) {
  for (const int index : flow(id).route.used()) {
    std::erase(wire(index).flows, id);
    touched_.push_back(index);
  }
}

void Flows::see(int index) {
  Wire& seen = wire(index);
  if (seen.seen == epoch_) return;
  seen.seen = epoch_;
  seen.left = speeds_[static_cast<size_t>(index)];
  seen.unfixed = static_cast<int>(seen.flows.size());
  component_.push_back(index);
}

// All wires that are connected with the touched ones through flows.
void Flows::find_component() {
  epoch_++;
  component_.clear();
  for (const int index : touched_) see(index);
  touched_.clear();
  for (size_t i = 0; i < component_.size(); i++) {
    for (const int id : wire(component_[i]).flows) {
      Flow& found = flow(id);
      if (found.seen == epoch_) continue;
      found.seen = epoch_;
      found.is_fixed = false;
      for (const int crossed : found.route.used()) see(crossed);
    }
  }
}

double Flows::least_share() const {
  double least = std::numeric_limits<double>::infinity();
  for (const int index : component_) {
    const Wire& candidate = wires_[static_cast<size_t>(index)];
    if (candidate.unfixed > 0) least = std::min(least, candidate.left / candidate.unfixed);
  }
  return least;
}

// Sets the speed of those of the wire's flows that have none yet.
void Flows::fix(int index, double speed, double now_ns) {
  for (const int id : wire(index).flows) {
    Flow& fixed = flow(id);
    if (fixed.is_fixed) continue;
    fixed.is_fixed = true;
    for (const int crossing : fixed.route.used()) {
      Wire& crossed = wire(crossing);
      crossed.left = std::max(0.0, crossed.left - speed);
      crossed.unfixed--;
    }
    if (fixed.speed == speed) continue;
    fixed.left = std::max(0.0, fixed.left - fixed.speed * (now_ns - fixed.since_ns));
    fixed.since_ns = now_ns;
    fixed.speed = speed;
    changes_.push_back({id, now_ns + fixed.left / speed});
  }
}

// The wire with the least share for each of its flows sets their speed, then the one with the least of the rest, and so
// on.
std::span<const Flows::Change> Flows::settle(double now_ns) {
  changes_.clear();
  if (touched_.empty()) return {};
  find_component();
  std::erase_if(component_, [&](int index) { return wire(index).flows.empty(); });
  while (!component_.empty()) {
    const double share = least_share();
    for (const int index : component_) {
      const Wire& tight = wire(index);
      if (tight.unfixed > 0 && tight.left / tight.unfixed <= share * kSame) fix(index, share, now_ns);
    }
    std::erase_if(component_, [&](int index) { return wire(index).unfixed == 0; });
  }
  return changes_;
}

}  // namespace tutti::sim
