#include "report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tutti::sim {
namespace {

using Json = nlohmann::ordered_json;

const char* name_of(Algo algo) {
  return algo_name(algo == Algo::kAuto ? Algo::kDirect : algo);
}

// 0 if any rank has no result.
double gbytes_per_s(uint64_t bytes, const Outcome& outcome) {
  return outcome.ns > 0 && outcome.failed == 0 ? static_cast<double>(bytes) / outcome.ns : 0;
}

// The wire that is busy longest, which holds up the others.
int busiest_wire(const Comparison& comparison, const Outcome& outcome) {
  const std::vector<double>& speeds = comparison.network.wires();
  const auto busy_ns = [&](size_t wire) { return static_cast<double>(outcome.wire_bytes[wire]) / speeds[wire]; };
  size_t busiest = 0;
  for (size_t wire = 1; wire < speeds.size(); wire++)
    if (busy_ns(wire) > busy_ns(busiest) * (1 + 1e-9)) busiest = wire;
  return static_cast<int>(busiest);
}

std::string human(uint64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit < 5; unit++) value /= 1024;
  return format("%.4g %s", value, units[unit]);
}

// "; rank 3 dies after 120 us"
std::string deaths_of(const Network& network) {
  std::string text;
  for (int rank = 0; rank < network.n_ranks(); rank++)
    if (network.dies_ns(rank) != Network::kNever)
      text += format("; rank %d dies after %g us", rank, network.dies_ns(rank) / 1000);
  return text;
}

std::string title(const Comparison& c) {
  const auto count = [](int n, const char* what) { return format("%d %s%s", n, what, n == 1 ? "" : "s"); };
  const int racks = c.network.rack_of(c.network.n_hosts() - 1) + 1;
  return "# " + c.operation + " of " + human(c.of.bytes) + ": " + count(c.network.n_ranks(), "rank") + " on " +
         count(c.network.n_hosts(), "host") + " in " + count(racks, "rack") + deaths_of(c.network);
}

}  // namespace

std::string to_table(const Comparison& c) {
  const double factor = bus_factor(c.of.collective, c.network.n_ranks());
  std::string text = title(c) + "; * is the fastest, + what the library chooses for floats\n";
  text += format("# %-15s %14s %8s %8s %14s %10s  %-12s %s\n", "algorithm", "time (us)", "algbw", "busbw", "cost model",
                 "messages", "busiest wire", "");
  text += format("# %-15s %14s %8s %8s %14s %10s\n", "", "", "(GB/s)", "(GB/s)", "(us)", "");
  for (const Row& row : c.rows) {
    const double algbw = gbytes_per_s(c.of.bytes, row.outcome);
    const int wire = busiest_wire(c, row.outcome);
    const std::string failed = row.outcome.failed > 0 ? format(", %d ranks fail", row.outcome.failed) : "";
    text += format("%c%c%-15s %14.2f %8.2f %8.2f %14.2f %10llu  %s of %s%s\n", &row == c.rows.data() ? '*' : ' ',
                   row.is_chosen ? '+' : ' ', name_of(row.algo), row.outcome.ns / 1000, algbw, algbw * factor,
                   row.planned_ns / 1000, static_cast<unsigned long long>(row.outcome.messages),
                   human(row.outcome.wire_bytes[static_cast<size_t>(wire)]).c_str(), c.network.wire_name(wire).c_str(),
                   failed.c_str());
  }
  return text;
}

std::string to_json(const Comparison& c) {
  const double factor = bus_factor(c.of.collective, c.network.n_ranks());
  Json rows = Json::array();
  for (const Row& row : c.rows) {
    const double algbw = gbytes_per_s(c.of.bytes, row.outcome);
    const int wire = busiest_wire(c, row.outcome);
    rows.push_back({{"algorithm", name_of(row.algo)},
                    {"time_us", row.outcome.ns / 1000},
                    {"algbw", algbw},
                    {"busbw", algbw * factor},
                    {"cost_model_us", row.planned_ns / 1000},
                    {"chosen", row.is_chosen},
                    {"messages", row.outcome.messages},
                    {"bytes_sent", row.outcome.bytes},
                    {"events", row.outcome.events},
                    {"failed", row.outcome.failed},
                    {"busiest_wire", c.network.wire_name(wire)},
                    {"busiest_wire_bytes", row.outcome.wire_bytes[static_cast<size_t>(wire)]}});
  }
  const Json json = {{"operation", c.operation},
                     {"bytes", c.of.bytes},
                     {"ranks", c.network.n_ranks()},
                     {"hosts", c.network.n_hosts()},
                     {"rows", rows}};
  return json.dump(2) + "\n";
}

// One process for each host, one thread for each rank's lane and for each rank that it sends to.
std::string to_trace(const Comparison& c) {
  Json events = Json::array();
  for (const sim::Span& span : c.rows.at(0).outcome.spans) {
    const bool is_message = span.kind == Span::kMessage;
    const std::string thread =
        format("rank %d lane %d", span.rank, span.lane) + (is_message ? format(" to %d", span.peer) : std::string());
    std::string name = is_message ? format("%llu bytes to %d", static_cast<unsigned long long>(span.bytes), span.peer)
                                  : std::string("works");
    if (span.kind == Span::kWaits) name = span.peer >= 0 ? format("waits for %d", span.peer) : "waits";
    events.push_back({{"name", name},
                      {"ph", "X"},
                      {"pid", format("host %d", c.network.host_of(span.rank))},
                      {"tid", thread},
                      {"ts", span.begin_ns / 1000},
                      {"dur", (span.end_ns - span.begin_ns) / 1000}});
  }
  return Json{{"displayTimeUnit", "ns"}, {"traceEvents", events}}.dump() + "\n";
}

}  // namespace tutti::sim
