// This header: what tools that watch a program learn about operations.
//
// perf, bpftrace and SystemTap: probes tutti:operation_begin and tutti:operation_end, with the call's name, its bytes,
// its sequence number (exchanges have their own) and the rank; the latter also with whether the operation failed.
//   perf probe -x libtutti.so sdt_tutti:operation_begin
//   bpftrace -e "usdt:./libtutti.so:tutti:operation_end { printf(\"%s %d\\n\", str(arg0), arg1); }"
//
// Nsight Systems and other profilers that know NVTX: in the domain "tutti" each operation is a range of the thread that
// carries it out, with its bytes as payload; a GPU's operation is a range of the thread that enqueues it.
//
// Without a tool, an operation pays for two loads that find none attached. Any thread.
#pragma once

#include <cstdint>

// The number of attached tools, which the kernel counts here; tools look for these names.
extern "C" {
extern volatile unsigned short tutti_operation_begin_semaphore;
extern volatile unsigned short tutti_operation_end_semaphore;
}

namespace tutti {

struct TraceSlot;

// Call before the first operation: a profiler is there from the start or not at all.
void attach_profiler();

// `is_range`: whether the thread that begins the operation also ends it.
[[gnu::cold, gnu::noinline]] void probe_begin(const TraceSlot& slot, int rank, bool is_range);
[[gnu::cold, gnu::noinline]] void probe_end(const TraceSlot& slot, int rank, bool is_range);

// For profilers: what this thread does during its lifetime belongs to the range of this name.
class ProfiledRange {
 public:
  ProfiledRange(const char* name, uint64_t bytes);
  ~ProfiledRange();
  ProfiledRange(const ProfiledRange&) = delete;
  ProfiledRange& operator=(const ProfiledRange&) = delete;
};

}  // namespace tutti
