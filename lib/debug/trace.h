// This header: what a flight recorder holds, as values: of a communicator of this process, or of a file. From any
// thread.
#pragma once

#include <cstdint>
#include <memory>
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
    std::string found;  // why, as the rank itself has found out by asking those of other hosts
  } wait;

  bool has_failed() const { return !error.empty(); }
  const TracedOperation* last() const { return operations.empty() ? nullptr : &operations.back(); }
  bool is_in_operation() const { return last() != nullptr && last()->state == TracedOperation::State::kStarted; }
  bool is_evidence() const { return has_failed() || is_in_operation(); }  // once the process is gone
};

// From ticks to the monotonic clock, by two points in time: when a recorder was made, and now. All recorders of a host
// count the same ticks. To compare their times take one clock for all: a process may have lost its CPU between asking
// one clock and the other, which moves all that is read with that.
class TickClock {
 public:
  explicit TickClock(const TraceHeader& header);
  int64_t to_ns(uint64_t at) const;
  int64_t read_ns() const { return read_ns_; }
  bool is_for(const TraceHeader& header) const { return by_cpu_ == (header.by_cpu != 0); }

 private:
  bool by_cpu_;
  uint64_t made_ticks_;
  int64_t made_ns_, read_ns_;
  double ns_per_tick_;
};

// A recorder's file, to be read as often as one likes, also after its owner has removed it.
class TraceFile {
 public:
  static Result<TraceFile> open(const std::string& path);
  const TraceHeader& header() const { return memory_->header; }
  // The operations after the `nth`.
  Trace read(const TickClock& clock, uint64_t nth = 0) const;
  // Only some of the last ones: a thousand take 0.7 ms.
  Trace read_end(const TickClock& clock) const;

 private:
  struct Unmap {
    void operator()(const TraceMemory* memory) const;
  };
  std::unique_ptr<const TraceMemory, Unmap> memory_;
};

// For who reads again and again what has come after the `nth`: after which to read now. Where some of it has been
// overwritten the rest is only a sample, and a few of the last ones will do as well.
uint64_t read_from(const TraceHeader& header, uint64_t nth);

Trace read_trace(const Recorder& recorder, uint64_t nth = 0);
Result<Trace> read_trace(const std::string& path);

// "AllReduce(count=1024, float, sum) [ring] as operation 7", "Send(count=4, int32, peer=1)".
std::string to_text(const TracedOperation& operation);
// In bytes.
uint64_t bytes_of(const Call& call);
// Its place's name; or "main+0x2a in /usr/bin/train", as far as this process knows; else the address.
std::string place_of(const TracedOperation& operation);

}  // namespace tutti
