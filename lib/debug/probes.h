// This header: probes for perf, bpftrace and SystemTap: tutti:operation_begin and tutti:operation_end, with the call's
// name, its bytes, its sequence number (of exchanges, their own) and the rank; the latter also with whether it failed.
//   perf probe -x libtutti.so sdt_tutti:operation_begin
//   bpftrace -e "usdt:./libtutti.so:tutti:operation_end { printf(\"%s %d\\n\", str(arg0), arg1); }"
// Without a tool an operation pays two loads of what says so.
//
// Any thread.
#pragma once

#include <cstdint>

// How many tools are attached, which the kernel counts here; the names are those that tools look for.
extern "C" {
extern volatile unsigned short tutti_operation_begin_semaphore;
extern volatile unsigned short tutti_operation_end_semaphore;
}

namespace tutti {

struct TraceSlot;

[[gnu::cold, gnu::noinline]] void probe_begin(const TraceSlot& slot, int rank);
[[gnu::cold, gnu::noinline]] void probe_end(const TraceSlot& slot, int rank);

}  // namespace tutti
