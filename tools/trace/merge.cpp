#include "merge.h"

#include <map>

namespace tutti::trace {
namespace {

using nlohmann::json;

double micros(int64_t ns) {
  return static_cast<double>(ns) / 1e3;
}

// Perfetto needs small numbers, so times start at the first operation.
int64_t first_ns(const std::vector<Dump>& dumps) {
  int64_t first = INT64_MAX;
  for (const Dump& dump : dumps)
    for (const Event& event : dump.events) first = std::min(first, event.created_ns);
  return first;
}

json slice(const Dump& dump, size_t track, const Event& event, int64_t zero_ns) {
  const int64_t end_ns = event.finished_ns != 0 ? event.finished_ns : dump.written_ns;
  json args{{"call", event.text}, {"bytes", event.bytes}, {"caller", event.caller}, {"group", dump.group}};
  if (event.created_ns != event.started_ns) args["queued_us"] = micros(event.started_ns - event.created_ns);
  const char* const state = event.failed ? "failed" : event.finished_ns == 0 ? "under way" : "completed";
  args["state"] = state;
  json made{{"ph", "X"},
            {"name", event.name},
            {"cat", state},
            {"pid", track},
            {"tid", 0},
            {"ts", micros(event.started_ns - zero_ns)},
            {"dur", micros(end_ns - event.started_ns)},
            {"args", std::move(args)}};
  if (event.failed || event.finished_ns == 0) made["cname"] = "terrible";
  return made;
}

struct Arrival {
  size_t track;
  int64_t at_ns;
};

// From the rank that was the last to start an operation to the others of its group.
void add_arrows(const std::map<std::pair<std::string, uint64_t>, std::vector<Arrival>>& arrivals, int64_t zero_ns,
                json* events) {
  size_t id = 0;
  for (const auto& [operation, ranks] : arrivals) {
    const Arrival* last = &ranks[0];
    for (const Arrival& one : ranks)
      if (one.at_ns > last->at_ns) last = &one;
    for (const Arrival& one : ranks) {
      if (&one == last) continue;
      const json common{{"name", "the last to arrive"},
                        {"cat", "late"},
                        {"id", ++id},
                        {"tid", 0},
                        {"ts", micros(last->at_ns - zero_ns)}};
      json from = common, to = common;
      from.update({{"ph", "s"}, {"pid", last->track}});
      to.update({{"ph", "f"}, {"bp", "e"}, {"pid", one.track}});
      events->push_back(std::move(from));
      events->push_back(std::move(to));
    }
  }
}

}  // namespace

std::string perfetto_text(const std::vector<Dump>& dumps) {
  const int64_t zero_ns = first_ns(dumps);
  json events = json::array();
  std::map<std::pair<std::string, uint64_t>, std::vector<Arrival>> arrivals;
  for (size_t track = 0; track < dumps.size(); track++) {
    const Dump& dump = dumps[track];
    const std::string name = format("rank %d (%s, pid %d)", dump.rank, dump.host.c_str(), dump.pid);
    events.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", track}, {"args", {{"name", name}}}});
    events.push_back(
        {{"ph", "M"}, {"name", "process_sort_index"}, {"pid", track}, {"args", {{"sort_index", dump.rank}}}});
    for (const Event& event : dump.events) {
      events.push_back(slice(dump, track, event, zero_ns));
      if (event.sequence != 0) arrivals[{dump.group, event.sequence}].push_back({track, event.started_ns});
    }
  }
  add_arrows(arrivals, zero_ns, &events);
  return json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ns"}}.dump();
}

}  // namespace tutti::trace
