#include "debug/probes.h"

#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>

#include "debug/trace.h"

extern "C" {
[[gnu::section(".probes"), gnu::used]] volatile unsigned short tutti_operation_begin_semaphore = 0;
[[gnu::section(".probes"), gnu::used]] volatile unsigned short tutti_operation_end_semaphore = 0;
}

namespace tutti {
namespace {

struct Told {
  const char* name;
  uint64_t bytes, sequence;
};

Told tell(const TraceSlot& slot) {
  const Call call = from_tag({slot.sequence, slot.count, slot.kinds, slot.blocks & 0xffffffff});
  const bool is_known = static_cast<int>(call.collective) < kCollectives;
  return {is_known ? traits(call.collective).name : "unknown", bytes_of(call), call.sequence};
}

}  // namespace

void probe_begin(const TraceSlot& slot, int rank) {
  const auto [name, bytes, sequence] = tell(slot);
  STAP_PROBE4(tutti, operation_begin, name, bytes, sequence, rank);
}

void probe_end(const TraceSlot& slot, int rank) {
  const auto [name, bytes, sequence] = tell(slot);
  const int has_failed = static_cast<int>(slot.finished & 1);
  STAP_PROBE5(tutti, operation_end, name, bytes, sequence, rank, has_failed);
}

}  // namespace tutti
