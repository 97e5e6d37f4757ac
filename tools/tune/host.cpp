#include "host.h"

#include <nlohmann/json.hpp>

#include "tools/sim/calibrate.h"

namespace tutti::tune {
namespace {

using perf::text, perf::usage_error;

// Whether ranks wait for a reply. If not they run ahead of each other, which the simulator does not model well: with
// such operations it misses those over shared memory by 25 % instead of 16.
bool waits_for_all(Collective collective) {
  return collective != Collective::kBroadcast && collective != Collective::kReduce;
}

// Operations were measured many in a row.
constexpr int kRow = 4;

sim::MeasuredOperation operation_of(const Sample& sample) {
  const auto n = static_cast<uint64_t>(sample.facts.n_ranks);
  return {.of = {.collective = sample.collective,
                 .bytes = sample.bytes * (traits(sample.collective).in_blocks() ? n : 1),
                 .row = kRow},
          .algo = sample.algo,
          .n_ranks = sample.facts.n_ranks,
          .ns = sample.ns};
}

// Guesses that are a few doublings away from any machine.
Cluster start_at(const Facts& facts, bool shares_cpus) {
  constexpr double kNoWire = 1e15;
  const Conduit shm{kNoWire, 100, 30, 0.02}, loopback{kNoWire, 1000, 2000, 0.1},
      network{1.25e8, 20'000, 4000, 0.1, 64 << 10};
  const bool one_host = facts.hosts == 1;
  const Conduit local = facts.shares_memory ? shm : loopback;
  return {.racks = 1,
          .hosts_per_rack = one_host ? 1 : 1 << 16,
          .ranks_per_host = one_host ? 1 << 16 : facts.largest_host,
          .local = local,
          .nic = one_host ? local : network,
          .cpus = {.per_host = facts.machine.cpus,
                   .are_shared = shares_cpus,
                   .summed_byte_ns = 0.02,
                   .cache_bytes = static_cast<double>(facts.cache_bytes),
                   .far_byte_ns = 0.01,
                   .evicted_byte_ns = facts.shares_memory ? 0 : .05,
                   .operation_ns = 200,
                   .switch_ns = 700},
          .links = {.shares_memory = facts.shares_memory}};
}

bool was_over(const Facts& facts, const std::string& way) {
  if (facts.hosts > 1) return way == "network" || way == "namespaces";
  return way == (facts.shares_memory ? "shm" : "tcp");
}

std::string to_json(const sim::Calibration& found, size_t n_operations) {
  using Json = nlohmann::ordered_json;
  const Cluster& c = found.cluster;
  const auto us = [](double ns) { return rounded(ns / 1000); };
  const auto to_json = [&](const Conduit& way) {
    Json json{{"gbit_per_s", rounded(way.bytes_per_second * 8 / 1e9)},
              {"latency_us", us(way.latency_ns)},
              {"message_us", us(way.message_ns)},
              {"byte_ns", rounded(way.byte_ns)}};
    if (way.burst_bytes > 0) json["burst_bytes"] = rounded(way.burst_bytes);
    return json;
  };
  const Json file = {{"name", text("measured by tutti-tune: %.0f %% off in the median of %zu operations",
                                   100 * found.median_error, n_operations)},
                     {"racks", c.racks},
                     {"hosts_per_rack", c.hosts_per_rack},
                     {"ranks_per_host", c.ranks_per_host},
                     {"cpus_per_host", c.cpus.per_host},
                     {"shares_cpus", c.cpus.are_shared},
                     {"shares_memory", c.links.shares_memory},
                     {"summed_byte_ns", rounded(c.cpus.summed_byte_ns)},
                     {"cache_bytes", rounded(c.cpus.cache_bytes)},
                     {"far_byte_ns", rounded(c.cpus.far_byte_ns)},
                     {"evicted_byte_ns", rounded(c.cpus.evicted_byte_ns)},
                     {"operation_us", us(c.cpus.operation_ns)},
                     {"switch_us", us(c.cpus.switch_ns)},
                     {"local", to_json(c.local)},
                     {"nic", to_json(c.nic)}};
  return file.dump(2) + "\n";
}

}  // namespace

perf::Status describe_hosts(const std::vector<Sample>& samples, const std::string& way, std::string* json) {
  std::vector<sim::MeasuredOperation> operations;
  const Facts* first = nullptr;
  for (const Sample& sample : samples) {
    if (!was_over(sample.facts, way) || sample.is_free || !waits_for_all(sample.collective)) continue;
    if (first == nullptr) first = &sample.facts;
    if (sample.facts.machine.cpus != first->machine.cpus ||
        (first->hosts > 1 && (sample.facts.largest_host != first->largest_host ||
                              sample.facts.hosts * sample.facts.largest_host != sample.facts.n_ranks)))
      return usage_error(
          text("--simulated %s: the samples are from different hosts: %s", way.c_str(), to_text(sample.facts).c_str()));
    operations.push_back(operation_of(sample));
  }
  if (first == nullptr) return usage_error("--simulated " + way + ": none of the samples was measured over that");
  const auto found = sim::calibrate(operations, start_at(*first, way == "namespaces"));
  if (!found) return usage_error("--simulated " + way + ": " + found.error().message);
  *json = to_json(found.value(), operations.size());
  return {};
}

}  // namespace tutti::tune
