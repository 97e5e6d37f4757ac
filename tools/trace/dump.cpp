#include "dump.h"

#include <algorithm>

#include "base/file.h"

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

// The operations' kinds and times.
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

}  // namespace

Result<Dump> read_dump(const std::string& path) {
  TUTTI_TRY_ASSIGN(const std::string text, read_file(path));
  Dump dump;
  dump.file = path;
  dump.json = nlohmann::json::parse(text, nullptr, false);
  try {
    const nlohmann::json& own = dump.json.at("tutti");
    dump.group = own.at("group");
    dump.host = own.at("host");
    dump.machine = own.value("machine", uint64_t{0});
    dump.program = own.at("program");
    dump.error = own.at("error");
    dump.rank = own.at("rank");
    dump.n_ranks = own.at("ranks");
    dump.pid = own.at("pid");
    dump.written_ns = own.at("written_ns");
    for (const nlohmann::json& entry : dump.json.at("entries")) {
      dump.events.push_back(to_event(entry));
      // The rank may have gone on between reading the clock and reading its operations.
      dump.written_ns = std::max(dump.written_ns, dump.events.back().started_ns);
    }
  } catch (const nlohmann::json::exception& e) {
    return Error{Code::kInvalidArgument,
                 path +
                     " is not a trace of Tutti's: give files that tuttiDumpTrace, TUTTI_TRACE_FILE or "
                     "tutti-trace dump has written (" +
                     e.what() + ")"};
  }
  return dump;
}

std::map<std::string, StragglerDetector> roll_calls(const std::vector<Dump>& dumps) {
  std::map<std::string, StragglerDetector> groups;
  std::map<std::pair<std::string, uint64_t>, int> hosts;
  for (const Dump& dump : dumps) {
    const int host = hosts.try_emplace({dump.host, dump.machine}, static_cast<int>(hosts.size())).first->second;
    auto ended = AttendanceReader().follow(to_trace(dump));
    for (Attendance& at : ended) at.host = host;
    groups[dump.group].enter(dump.rank, ended);
  }
  for (auto& [group, roll] : groups) roll.compare();
  return groups;
}

}  // namespace tutti::trace
