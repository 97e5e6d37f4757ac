#include "debug/probes.h"

#if __has_include(<sys/sdt.h>)
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>
#endif
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

#include <cstdlib>

#include "debug/trace.h"

extern "C" {
[[gnu::section(".probes"), gnu::used]] volatile unsigned short tutti_operation_begin_semaphore = 0;
[[gnu::section(".probes"), gnu::used]] volatile unsigned short tutti_operation_end_semaphore = 0;
}

namespace tutti {
namespace {

#if __has_include(<nvtx3/nvToolsExt.h>)
// Null without a profiler. A program with more rights than its user (setuid) loads none.
nvtxDomainHandle_t profiler() {
  static const nvtxDomainHandle_t domain =
      secure_getenv("NVTX_INJECTION64_PATH") == nullptr ? nullptr : nvtxDomainCreateA("tutti");
  return domain;
}

void begin_range(const char* name, uint64_t bytes) {
  if (profiler() == nullptr) return;
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  range.payload.ullValue = bytes;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = name;
  (void)nvtxDomainRangePushEx(profiler(), &range);
}

void end_range() {
  if (profiler() != nullptr) (void)nvtxDomainRangePop(profiler());
}
#else
void* profiler() {
  return nullptr;
}
void begin_range(const char*, uint64_t) {}
void end_range() {}
#endif

struct Told {
  const char* name;
  uint64_t bytes, sequence;
};

Told tell(const TraceSlot& slot) {
  const Call call = slot.call();
  const bool is_known = static_cast<int>(call.collective) < kCollectives;
  return {is_known ? traits(call.collective).name : "unknown", bytes_of(call), call.sequence};
}

}  // namespace

// A profiler counts as one more tool, beside those that the kernel counts.
void attach_profiler() {
  [[maybe_unused]] static const bool once = [] {
    const auto n = static_cast<unsigned short>(profiler() == nullptr ? 0 : 1);
    tutti_operation_begin_semaphore = static_cast<unsigned short>(tutti_operation_begin_semaphore + n);
    tutti_operation_end_semaphore = static_cast<unsigned short>(tutti_operation_end_semaphore + n);
    return true;
  }();
}

void probe_begin(const TraceSlot& slot, [[maybe_unused]] int rank, bool is_range) {
  const auto [name, bytes, sequence] = tell(slot);
#if __has_include(<sys/sdt.h>)
  STAP_PROBE4(tutti, operation_begin, name, bytes, sequence, rank);
#endif
  if (is_range) begin_range(name, bytes);
}

void probe_end([[maybe_unused]] const TraceSlot& slot, [[maybe_unused]] int rank, bool is_range) {
#if __has_include(<sys/sdt.h>)
  const auto [name, bytes, sequence] = tell(slot);
  const int has_failed = static_cast<int>(slot.finished & 1);
  STAP_PROBE5(tutti, operation_end, name, bytes, sequence, rank, has_failed);
#endif
  if (is_range) end_range();
}

ProfiledRange::ProfiledRange(const char* name, uint64_t bytes) {
  begin_range(name, bytes);
}
ProfiledRange::~ProfiledRange() {
  end_range();
}

}  // namespace tutti
