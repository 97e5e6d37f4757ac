#include "debug/trace_json.h"

#include <algorithm>
#include <iterator>

#include "base/file.h"
#include "base/log.h"

namespace tutti {
namespace {

// How many bytes the character at `at` has; 0: it is not UTF-8. Names of files may be anything, and names of places may
// have been cut.
size_t character_bytes(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(at), second = byte(at + 1);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const bool is_overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool is_beyond = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  const size_t n = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  for (size_t i = 1; i < n; i++)
    if (is_overlong || is_beyond || (byte(at + i) & 0xc0) != 0x80) return 0;
  return n;
}

std::string json_text(const std::string& text) {
  std::string json = "\"";
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    const size_t n = character_bytes(text, at);
    if (c == '"' || c == '\\') json += '\\';
    if (n == 1 && static_cast<unsigned char>(c) < 0x20)
      json += format("\\u%04x", static_cast<unsigned>(c));
    else
      json += n == 0 ? "?" : text.substr(at, n);
    at += std::max<size_t>(n, 1);
  }
  return json + "\"";
}

// PyTorch's names. Its analyser knows the operations of only a few libraries; Tutti uses NCCL's names.
std::string torch_name(const Trace& trace, const Call& call) {
  static constexpr const char* kNames[] = {"barrier",        "all_reduce", "broadcast", "reduce",  "all_gather",
                                           "reduce_scatter", "all_to_all", "gather",    "scatter", "barrier",
                                           "coalesced",      "barrier",    "all_reduce"};
  static_assert(std::size(kNames) == kCollectives);
  const auto direction = is_point_to_point(call) ? static_cast<Direction>(call.op) : Direction::kSeveral;
  if (direction == Direction::kSend) return format("nccl:send %d->%d", trace.rank, call.root);
  if (direction == Direction::kReceive) return format("nccl:recv %d<-%d", trace.rank, call.root);
  return std::string("nccl:") + kNames[static_cast<size_t>(call.collective)];
}

const char* torch_dtype(DataType type) {
  static constexpr const char* kNames[kDataTypes] = {"Char",   "Byte",     "Int",           "UInt32",
                                                     "Long",   "UInt64",   "Half",          "Float",
                                                     "Double", "BFloat16", "Float8_e4m3fn", "Float8_e5m2"};
  return static_cast<int>(type) < kDataTypes ? kNames[static_cast<int>(type)] : "Undefined";
}

std::string entry(const Trace& trace, const TracedOperation& operation) {
  const Call& call = operation.call;
  const bool is_message = is_point_to_point(call);
  const CollectiveTraits& what = traits(call.collective);
  const auto elems = [&](Side side) {  // of all ranks' blocks together
    return std::to_string(call.count * (is_all(side) && call.blocks == 0 ? static_cast<uint64_t>(trace.n_ranks) : 1));
  };
  const auto real = [&](int64_t ns) {
    return ns == 0 ? std::string("null") : std::to_string(ns + trace.real_offset_ns);
  };
  const std::string dtype = torch_dtype(call.dtype);
  std::string json = "    {\"record_id\": " + std::to_string(operation.nth - 1) + ", \"pg_id\": 0";
  json += ", \"process_group\": [\"0\", \"tutti\"]";
  json += ", \"collective_seq_id\": " + std::to_string(is_message ? 0 : call.sequence);
  json += ", \"p2p_seq_id\": " + std::to_string(is_message ? call.sequence : 0);
  json +=
      ", \"op_id\": " + std::to_string(operation.nth) + ", \"profiling_name\": " + json_text(torch_name(trace, call));
  json += ", \"time_created_ns\": " + real(operation.created_ns);
  json += ", \"time_discovered_started_ns\": " + real(operation.started_ns);
  json += ", \"time_discovered_completed_ns\": " + real(operation.finished_ns);
  if (operation.finished_ns != 0)
    json +=
        ", \"duration_ms\": " + format("%.6f", static_cast<double>(operation.finished_ns - operation.started_ns) / 1e6);
  json += ", \"input_sizes\": [[" + elems(what.input) + "]], \"output_sizes\": [[" + elems(what.output) + "]]";
  json += ", \"input_dtypes\": [\"" + dtype + "\"], \"output_dtypes\": [\"" + dtype + "\"]";
  json += ", \"state\": ";
  json += operation.state == TracedOperation::State::kCompleted ? "\"completed\"" : "\"started\"";
  json += ", \"retired\": " + std::string(operation.finished_ns != 0 ? "true" : "false") + ", \"timeout_ms\": 0";
  json += ", \"is_p2p\": " + std::string(is_message ? "true" : "false");
  json += ", \"frames\": [{\"name\": " + json_text(place_of(trace, operation)) + ", \"filename\": \"\", \"line\": 0}]";
  json += ", \"tutti\": {\"text\": " + json_text(to_text(operation)) + ", \"bytes\": " + std::to_string(bytes_of(call));
  json += ", \"plan\": \"" + std::string(algo_name(call.algo)) + "\"";
  json += ", \"failed\": " + std::string(operation.state == TracedOperation::State::kFailed ? "true" : "false") + "}}";
  return json;
}

std::string status(const Trace& trace) {
  uint64_t started = 0, completed = 0;
  for (const TracedOperation& operation : trace.operations) {
    if (is_point_to_point(operation.call)) continue;
    started = operation.call.sequence;
    if (operation.state == TracedOperation::State::kCompleted) completed = operation.call.sequence;
  }
  return "{\"last_enqueued_collective\": " + std::to_string(started) +
         ", \"last_started_collective\": " + std::to_string(started) +
         ", \"last_completed_collective\": " + std::to_string(completed) + "}";
}

std::string about(const Trace& trace) {
  std::string json = "{\"rank\": " + std::to_string(trace.rank) + ", \"ranks\": " + std::to_string(trace.n_ranks);
  json += ", \"group\": \"" + format("%016lx", trace.group) + "\"";
  json += ", \"host\": " + json_text(trace.host) + ", \"program\": " + json_text(trace.program);
  json += ", \"machine\": " + std::to_string(trace.process.pid_namespace >> 32);  // hosts may share a name
  json += ", \"pid\": " + std::to_string(trace.process.pid) + ", \"error\": " + json_text(trace.error);
  json += ", \"written_ns\": " + std::to_string(trace.read_ns + trace.real_offset_ns) + ", \"waits_for\": [";
  for (const int& awaited : trace.wait.awaited)
    json += (&awaited == trace.wait.awaited.data() ? "" : ", ") + std::to_string(awaited);
  json += "]";
  if (!trace.wait.awaited.empty())
    json += ", \"waits_since_ns\": " + std::to_string(trace.wait.since_ns + trace.real_offset_ns);
  return json + "}";
}

}  // namespace

std::string to_json(const Trace& trace) {
  std::string ranks = "[";
  for (int r = 0; r < trace.n_ranks; r++) ranks += format("%s%d", r == 0 ? "" : ", ", r);
  ranks += "]";
  std::string json =
      "{\n  \"version\": \"2.10\",\n  \"pg_config\": {\"0\": {\"name\": \"0\", \"desc\": \"tutti\", \"ranks\": ";
  json += json_text(ranks) + "}},\n  \"pg_status\": {\"0\": " + status(trace) + "},\n  \"tutti\": " + about(trace);
  json += ",\n  \"entries\": [\n";
  for (const TracedOperation& operation : trace.operations)
    json += entry(trace, operation) + (&operation == trace.last() ? "\n" : ",\n");
  return json + "  ]\n}\n";
}

std::string trace_path(const std::string& pattern, const Trace& trace) {
  std::string path;
  for (size_t i = 0; i < pattern.size(); i++) {
    const char what = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    const size_t before = path.size();
    if (what == 'r') path += std::to_string(trace.rank);
    if (what == 'p') path += std::to_string(trace.process.pid);
    if (what == 'h') path += trace.host;
    if (what == 'g') path += format("%016lx", trace.group);
    if (path.size() == before)
      path += pattern[i];
    else
      i++;
  }
  return path;
}

Result<std::string> write_trace(const Trace& trace, const std::string& pattern) {
  const std::string path = trace_path(pattern, trace);
  TUTTI_TRY(write_file(path, to_json(trace)));
  return path;
}

void write_trace_file(const Recorder& recorder, const std::string& pattern) {
  if (pattern.empty()) return;
  if (const auto written = write_trace(read_trace(recorder), pattern); !written)
    log(LogLevel::kWarn, "TUTTI_TRACE_FILE: the last operations could not be saved: %s",
        written.error().message.c_str());
}

}  // namespace tutti
