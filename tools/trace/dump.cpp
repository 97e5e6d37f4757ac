#include "dump.h"

#include <algorithm>
#include <fstream>
#include <map>

namespace tutti::trace {
namespace {

Event to_event(const nlohmann::json& entry) {
  const auto time = [&](const char* key) {
    return entry.at(key).is_null() ? int64_t{0} : entry.at(key).get<int64_t>();
  };
  const nlohmann::json& own = entry.at("tutti");
  Event event;
  event.number = entry.at("op_id");
  event.text = own.at("text");
  event.name = event.text.substr(0, event.text.find_first_of("( "));
  event.created_ns = time("time_created_ns");
  event.started_ns = time("time_discovered_started_ns");
  event.finished_ns = time("time_discovered_completed_ns");
  event.failed = own.at("failed");
  event.bytes = own.at("bytes");
  event.sequence = entry.at("collective_seq_id");
  event.caller = entry.at("frames").at(0).at("name");
  return event;
}

}  // namespace

Result<Dump> read_dump(const std::string& path) {
  std::ifstream file(path);
  if (!file) return system_error("open " + path, errno);
  Dump dump;
  dump.file = path;
  dump.json = nlohmann::json::parse(file, nullptr, false);
  try {
    const nlohmann::json& own = dump.json.at("tutti");
    dump.group = own.at("group");
    dump.host = own.at("host");
    dump.program = own.at("program");
    dump.error = own.at("error");
    dump.rank = own.at("rank");
    dump.n_ranks = own.at("ranks");
    dump.pid = own.at("pid");
    dump.written_ns = own.at("written_ns");
    for (const nlohmann::json& entry : dump.json.at("entries")) dump.events.push_back(to_event(entry));
  } catch (const nlohmann::json::exception& e) {
    return Error{Code::kInvalidArgument,
                 path +
                     " is no trace of Tutti's: give files that tuttiDumpTrace, TUTTI_TRACE_FILE or "
                     "tutti-trace dump has written (" +
                     e.what() + ")"};
  }
  return dump;
}

Trace to_trace(const Dump& dump) {
  Trace made;
  for (const Event& event : dump.events) {
    TracedOperation operation;
    operation.nth = event.number;
    operation.call.sequence = event.sequence;
    operation.call.collective = Collective::kSendRecv;
    for (int i = 0; i < kCollectives && event.sequence != 0; i++) {
      const std::string name = traits(static_cast<Collective>(i)).name;
      if (event.name == name || event.name == name + "v") operation.call.collective = static_cast<Collective>(i);
    }
    operation.started_ns = event.started_ns;
    operation.finished_ns = event.finished_ns;
    made.operations.push_back(std::move(operation));
  }
  return made;
}

std::vector<Lateness> lateness(const std::vector<const Dump*>& group) {
  std::map<uint64_t, std::vector<int64_t>> began;  // by operation, in the order of dumps
  for (size_t i = 0; i < group.size(); i++)
    for (const Event& event : group[i]->events)
      if (event.sequence != 0 && began[event.sequence].size() == i) began[event.sequence].push_back(event.started_ns);
  std::vector<std::vector<int64_t>> late(group.size());
  std::vector<Lateness> all(group.size());
  for (const auto& [sequence, times] : began) {
    if (times.size() != group.size()) continue;
    const auto [first, last] = std::minmax_element(times.begin(), times.end());
    all[static_cast<size_t>(last - times.begin())].last++;
    for (size_t i = 0; i < times.size(); i++) late[i].push_back(times[i] - *first);
  }
  for (size_t i = 0; i < group.size(); i++) {
    all[i].rank = group[i]->rank;
    all[i].operations = late[i].size();
    if (late[i].empty()) continue;
    std::sort(late[i].begin(), late[i].end());
    all[i].median_ns = late[i][late[i].size() / 2];
    all[i].most_ns = late[i].back();
  }
  return all;
}

}  // namespace tutti::trace
