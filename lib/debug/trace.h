// This header: what a flight recorder holds, as values: of a communicator of this process, or of a file. From any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "debug/call.h"
#include "debug/recorder.h"
#include "debug/trace_files.h"

namespace tutti {

// Times are of the monotonic clock; 0: not yet.
struct TracedOperation {
  enum class State : uint8_t { kStarted, kCompleted, kFailed };
  uint64_t nth = 0;  // of all that this rank did
  Call call;
  const void* caller = nullptr;
  std::string place;  // its name, if it has one: "all_reduce of float32[4] at train.py:41"
  int64_t created_ns = 0, started_ns = 0, finished_ns = 0;
  State state = State::kStarted;
};

struct Trace {
  uint64_t group = 0;
  int rank = 0, n_ranks = 0;
  ProcessId process;
  std::string host, program, error;         // why the group ended
  int64_t read_ns = 0, real_offset_ns = 0;  // when; what leads to the calendar's time
  std::vector<TracedOperation> operations;  // in their order
  // What the last operation waits for, if it has waited for long.
  struct Wait {
    int64_t since_ns = 0;
    std::vector<Recorder::Awaited> awaited;
  } wait;

  bool has_failed() const { return !error.empty(); }
  const TracedOperation* last() const { return operations.empty() ? nullptr : &operations.back(); }
  bool is_in_operation() const { return last() != nullptr && last()->state == TracedOperation::State::kStarted; }
};

Trace read_trace(const Recorder& recorder);
Result<Trace> read_trace(const std::string& path);

// "AllReduce(count=1024, float, sum) [ring] as operation 7", "Send(count=4, int32, peer=1)".
std::string to_text(const TracedOperation& operation);
// In bytes.
uint64_t bytes_of(const Call& call);
// Its place's name; or "main+0x2a in /usr/bin/train", as far as this process knows; else the address.
std::string place_of(const TracedOperation& operation);

}  // namespace tutti
