// A script's streams, events, memory and operators.
#include <atomic>

#include "script.h"

namespace tutti::fuzz {
namespace {

std::atomic<int> g_callbacks{0};

}  // namespace

void Script::stream() {
  const uint8_t which = in_.byte();
  auto& slot = streams_[in_.below(kSlots)];
  const tuttiStreamCallback_t callback = [](tuttiStream_t, tuttiResult_t status, void* data) {
    expect(status >= tuttiSuccess && status < tuttiNumResults, "a status is a result");
    (*static_cast<std::atomic<int>*>(data))++;
  };
  const tuttiStream_t s = stream_handle();
  switch (which % 6) {
    case 0:
      if (slot == nullptr) checked(tuttiStreamCreate(&slot));
      break;
    case 1: checked(tuttiStreamSynchronize(s)); break;
    case 2: checked(tuttiStreamQuery(s)); break;
    case 3: checked(tuttiStreamAddCallback(s, in_.byte() > 250 ? nullptr : callback, &g_callbacks)); break;
    case 4: checked(tuttiStreamWaitEvent(s, event_handle())); break;
    default: checked(tuttiStreamDestroy(slot)); slot = nullptr;
  }
  checked(tuttiStreamCreate(nullptr));
}

void Script::event() {
  const uint8_t which = in_.byte();
  auto& slot = events_[in_.below(kSlots)];
  const tuttiEvent_t e = event_handle();
  switch (which % 5) {
    case 0:
      if (slot == nullptr) checked(tuttiEventCreate(&slot));
      break;
    case 1: checked(tuttiEventRecord(e, stream_handle())); break;
    case 2: checked(tuttiEventQuery(e)); break;
    case 3: checked(tuttiEventSynchronize(e)); break;
    default: checked(tuttiEventDestroy(slot)); slot = nullptr;
  }
  checked(tuttiEventCreate(nullptr));
}

void Script::memory() {
  auto& slot = memory_[in_.below(kSlots)];
  const uint8_t kind = in_.byte();
  checked(tuttiMemFree(kind % 4 == 0 ? arena_->at(kind) : slot));  // an address inside an arena was never allocated
  if (kind % 4 == 0) return;
  const size_t bytes = kind > 250 ? SIZE_MAX - in_.take<uint16_t>() : in_.take<uint16_t>();
  const tuttiResult_t result = checked(tuttiMemAlloc(&slot, bytes));
  expect(result != tuttiSuccess || (slot == nullptr) == (bytes == 0), "there is memory, if any was asked for");
  if (result != tuttiSuccess) slot = nullptr;
  if (slot != nullptr) memset(slot, kind, bytes);
  checked(tuttiMemAlloc(nullptr, bytes));
}

void Script::op() {
  const uint8_t which = in_.byte();
  const tuttiComm_t c = comm();
  auto& slot = ops_[in_.below(kSlots)];
  if (which % 3 == 0) return void(checked(tuttiRedOpDestroy(reduction(), c)));
  static thread_local std::array<char, 8> scalars[kSlots];
  auto& scalar = scalars[in_.below(kSlots)];
  const auto t = type();
  const auto residence = any<tuttiScalarResidence_t>(number());
  checked(tuttiRedOpCreatePreMulSum(which < 200 ? &slot : nullptr, which % 8 == 1 ? nullptr : scalar.data(), t,
                                    residence, c));
}

void Script::register_memory() {
  const uint8_t which = in_.byte();
  const tuttiComm_t c = comm();
  auto& slot = registrations_[in_.below(kSlots)];
  const auto place = in_.take<uint16_t>();
  void* known = which > 250 ? &slot : slot;  // or an invalid registration
  if (which % 3 == 0) {
    finish_operations();
    checked(tuttiCommDeregister(c, known));
    return;
  }
  const size_t bytes = place % 16 == 0 ? 0 : 1 + in_.take<uint16_t>() % kOffsets;
  checked(tuttiCommRegister(c, place % 16 == 15 ? nullptr : arena_->at(place % kOffsets), bytes,
                            which > 240 ? nullptr : &slot));
  tuttiCommMemStats_t stats = TUTTI_COMM_MEM_STATS_INITIALIZER;
  if (which > 200) stats.size = in_.byte();
  checked(tuttiCommMemStats(c, which > 240 ? nullptr : &stats));
}

void Script::finish_operations() {
  leave_group();
  for (tuttiStream_t s : streams_) checked(tuttiStreamSynchronize(s));
}
}  // namespace tutti::fuzz
