// This header: the contents of a flight recorder as values, from a communicator of this process or from a file. From
// any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "debug/call.h"
#include "debug/recorder.h"
#include "debug/trace_files.h"

namespace tutti {

// Times are of the monotonic clock; 0: not yet.
struct TracedOperation {
  enum class State : uint8_t { kStarted, kCompleted, kFailed };
  uint64_t nth = 0;  // its number among all operations of this rank
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
  bool is_own = false;                      // of this process: its addresses can be named here
  std::string host, program, error;         // error: why the group ended
  int64_t read_ns = 0, real_offset_ns = 0;  // when it was read; what to add for the wall clock's time
  std::vector<TracedOperation> operations;  // in their order
  // What the last operation waits for, if it has waited for long.
  struct Wait {
    int64_t since_ns = 0;
    std::vector<int> awaited;  // ranks
    std::string found;         // why, as the rank itself has found out by asking ranks of other hosts
  } wait;

  bool has_failed() const { return !error.empty(); }
  const TracedOperation* last() const { return operations.empty() ? nullptr : &operations.back(); }
  bool is_in_operation() const { return last() != nullptr && last()->state == TracedOperation::State::kStarted; }
  bool is_evidence() const { return has_failed() || is_in_operation(); }  // when the process is gone
};

// Converts ticks to the monotonic clock, by two points in time: when a recorder was made, and now. All recorders of a
// host count the same ticks. To compare their times, use one TickClock for all: a process may have lost its CPU between
// reading the two clocks, which shifts all times that are converted with that.
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

// A recorder's file, which can be read any number of times, even after its owner has removed it.
class TraceFile {
 public:
  static Result<TraceFile> open(const std::string& path);
  const TraceHeader& header() const { return memory().header; }
  // The operations after the `nth`.
  Trace read(const TickClock& clock, uint64_t nth = 0) const;
  // Only some of the last operations: a thousand take 0.7 ms.
  Trace read_end(const TickClock& clock) const;

 private:
  const TraceMemory& memory() const { return *reinterpret_cast<const TraceMemory*>(memory_.get()); }
  MappedMemory memory_;
};

// For readers that come again and again and have read up to the `nth`: after which operation to read now. If some have
// been overwritten, the rest is only a sample, and a few of the last ones will do as well.
uint64_t read_from(const TraceHeader& header, uint64_t nth);

Trace read_trace(const Recorder& recorder, uint64_t nth = 0);
Result<Trace> read_trace(const std::string& path);

// "AllReduce(count=1024, float, sum) [ring] as operation 7", "Send(count=4, int32, peer=1)".
std::string to_text(const TracedOperation& operation);
// The size of the call's data in bytes.
uint64_t bytes_of(const Call& call);
// Its place's name; else "main+0x2a in /usr/bin/train", if this process can tell; else the address.
std::string place_of(const Trace& trace, const TracedOperation& operation);

}  // namespace tutti
