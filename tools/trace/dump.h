// A file written by tuttiDumpTrace or TUTTI_TRACE_FILE, as far as pictures need it.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "debug/lateness.h"

namespace tutti::trace {

struct Event {
  uint64_t number = 0;
  std::string text;                                         // "AllReduce(count=4, float, sum) [ring] as operation 7"
  std::string name;                                         // "AllReduce"
  int64_t created_ns = 0, started_ns = 0, finished_ns = 0;  // wall-clock times; finished: 0 if it has not
  bool failed = false;
  uint64_t bytes = 0;
  std::string caller;
  uint64_t sequence = 0;  // of a collective; 0 for messages
};

struct Dump {
  std::string file, group, host, program, error;
  uint64_t machine = 0;  // whose clock it is; 0: written by an earlier version, which only has the host's name
  int rank = 0, n_ranks = 0, pid = 0;
  int64_t written_ns = 0;
  std::vector<Event> events;
  nlohmann::json json;  // the whole file
};

Result<Dump> read_dump(const std::string& path);
// Which ranks came late, by group.
std::map<std::string, StragglerDetector> roll_calls(const std::vector<Dump>& dumps);

}  // namespace tutti::trace
