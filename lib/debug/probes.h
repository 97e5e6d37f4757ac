// This header: what tools that watch a program learn of operations.
//
// perf, bpftrace and SystemTap: probes tutti:operation_begin and tutti:operation_end, with the call's name, its bytes,
// its sequence number (of exchanges, their own) and the rank; the latter also with whether it failed.
//   perf probe -x libtutti.so sdt_tutti:operation_begin
//   bpftrace -e "usdt:./libtutti.so:tutti:operation_end { printf(\"%s %d\\n\", str(arg0), arg1); }"
//
// Nsight Systems and other profilers that know NVTX: in the domain "tutti" each operation is a range of the thread that
// carries it out, with its bytes as payload; what goes to a GPU is a range of the thread that enqueues it.
//
// Without a tool an operation pays two loads of what says so. Any thread.
#pragma once

#include <cstdint>

// How many tools are attached, which the kernel counts here; the names are those that tools look for.
extern "C" {
extern volatile unsigned short tutti_operation_begin_semaphore;
extern volatile unsigned short tutti_operation_end_semaphore;
}

namespace tutti {

struct TraceSlot;

// A profiler is there from the start or not at all: before the first operation.
void attach_profiler();

[[gnu::cold, gnu::noinline]] void probe_begin(const TraceSlot& slot, int rank);
[[gnu::cold, gnu::noinline]] void probe_end(const TraceSlot& slot, int rank);

// For profilers: what this thread does meanwhile belongs to that.
class ProfiledRange {
 public:
  ProfiledRange(const char* name, uint64_t bytes);
  ~ProfiledRange();
  ProfiledRange(const ProfiledRange&) = delete;
  ProfiledRange& operator=(const ProfiledRange&) = delete;
};

}  // namespace tutti
