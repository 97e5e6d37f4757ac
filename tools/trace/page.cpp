#include <algorithm>
#include <map>

#include "merge.h"

namespace tutti::trace {

extern const char kPage[];  // page.html

namespace {

using nlohmann::json;

std::string label(int rank, const std::string& group, bool has_groups) {
  return format("rank %d%s", rank, has_groups ? (" of " + group.substr(0, 6)).c_str() : "");
}

json rank_of(const Dump& dump, int64_t zero_ns, bool has_groups) {
  json events = json::array();
  for (const Event& event : dump.events) {
    const bool ended = event.finished_ns != 0;
    events.push_back({{"name", event.name},
                      {"call", event.text},
                      {"start", event.started_ns - zero_ns},
                      {"end", (ended ? event.finished_ns : dump.written_ns) - zero_ns},
                      {"queued", event.started_ns - event.created_ns},
                      {"bytes", event.bytes},
                      {"caller", event.caller},
                      {"sequence", event.sequence},
                      {"state", event.failed ? "failed"
                                : ended      ? "completed"
                                             : "under way"}});
  }
  return {{"label", label(dump.rank, dump.group, has_groups)},
          {"host", dump.host},
          {"group", dump.group},
          {"error", dump.error},
          {"events", std::move(events)}};
}

// JSON that cannot end the script element.
std::string in_script(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos;) text.replace(at, 1, "\\u003c");
  return text;
}

}  // namespace

std::string html_page(const std::vector<Dump>& dumps) {
  int64_t zero_ns = INT64_MAX, end_ns = 0;
  const auto groups = roll_calls(dumps);
  for (const Dump& dump : dumps) {
    for (const Event& event : dump.events) {
      zero_ns = std::min(zero_ns, event.started_ns);
      end_ns = std::max(end_ns, event.finished_ns != 0 ? event.finished_ns : dump.written_ns);
    }
  }
  json data{{"ranks", json::array()},
            {"late", json::array()},
            {"sentences", json::array()},
            {"end", std::max<int64_t>(1, end_ns - zero_ns)}};
  for (const Dump& dump : dumps) data["ranks"].push_back(rank_of(dump, zero_ns, groups.size() > 1));
  for (const auto& [group, roll] : groups) {
    if (const auto sentence = roll.sentence())
      data["sentences"].push_back((groups.size() > 1 ? "Group " + group.substr(0, 6) + ": " : "") + *sentence + ".");
    for (const auto& [rank, late] : roll.ranks())
      data["late"].push_back({{"label", label(rank, group, groups.size() > 1)},
                              {"operations", late.operations},
                              {"late", late.late},
                              {"total", late.late_ns},
                              {"worst", late.worst_ns},
                              {"waited", late.waited_ns}});
  }
  std::string page = kPage;
  constexpr char kPlace[] = "/*DATA*/";
  return page.replace(page.find(kPlace), sizeof kPlace - 1, in_script(data));
}

}  // namespace tutti::trace
