#include "debug/trace.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fd.h"

namespace tutti {
namespace {

constexpr int64_t kMostNs = int64_t{1} << 60;  // 36 years: no computer has been on for longer
constexpr int32_t kMostRanks = 1 << 20;

// Files may have been written by anybody, or only in part. Values from them are added up and used as limits of loops.
bool is_sound(const TraceHeader& header) {
  const auto is_time = [](int64_t ns) { return ns >= 0 && ns < 2 * kMostNs; };
  return header.magic == TraceHeader::kMagic && header.n_ranks > 0 && header.n_ranks <= kMostRanks &&
         header.rank >= 0 && header.rank < header.n_ranks && is_time(header.made_ns) && is_time(header.made_real_ns);
}

template <size_t kBytes>
std::string text_of(const char (&field)[kBytes]) {
  return std::string(field, strnlen(field, kBytes));
}

// False if the slot was written meanwhile, or has long been overwritten.
bool read_slot(const TraceSlot& slot, uint64_t nth, const TickClock& clock, TracedOperation* to) {
  constexpr auto kOrder = std::memory_order_acquire;
  if (slot.nth.load(kOrder) != nth) return false;
  const uint64_t started = slot.started.load(kOrder), finished = slot.finished.load(kOrder);
  to->nth = nth;
  to->call = slot.call();
  to->caller = slot.place_or_caller();
  to->started_ns = clock.to_ns(started);
  to->created_ns = clock.to_ns(started - (slot.blocks.load(kOrder) >> 32 << TraceSlot::kQueuedShift));
  to->finished_ns = finished == 0 ? 0 : clock.to_ns(finished);
  using State = TracedOperation::State;
  to->state = finished == 0 ? State::kStarted : (finished & 1) != 0 ? State::kFailed : State::kCompleted;
  return slot.nth.load(kOrder) == nth && static_cast<int>(to->call.collective) < kCollectives;
}

Trace read(const TraceMemory& memory, const TickClock& clock, uint64_t after) {
  const TraceHeader& header = memory.header;
  Trace trace;
  trace.group = header.group;
  trace.rank = header.rank;
  trace.n_ranks = header.n_ranks;
  trace.process = {header.pid, header.process_start, header.pid_namespace};
  trace.host = text_of(header.host);
  trace.program = text_of(header.program);
  if (header.has_failed.load(std::memory_order_acquire) == 2) trace.error = text_of(header.error);
  trace.read_ns = clock.read_ns();
  trace.real_offset_ns = header.made_real_ns - header.made_ns;
  const uint64_t waiting = header.waiting_nth.load(std::memory_order_acquire);
  trace.wait.since_ns =
      static_cast<int64_t>(std::min<uint64_t>(header.waiting_since_ns.load(std::memory_order_acquire), kMostNs));
  const uint64_t n_awaited =
      std::min<uint64_t>(header.n_awaited.load(std::memory_order_acquire), TraceHeader::kMostAwaited);
  for (uint64_t i = 0; i < n_awaited; i++)
    trace.wait.awaited.push_back(header.awaited[i].load(std::memory_order_acquire));
  if (header.found_nth.load(std::memory_order_acquire) == waiting && waiting != 0)
    trace.wait.found = text_of(header.found);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (header.found_nth.load(std::memory_order_relaxed) != waiting) trace.wait.found.clear();
  const uint64_t begun = header.begun.load(std::memory_order_acquire);
  constexpr uint64_t kOperations = TraceMemory::kOperations;
  const uint64_t first = std::max(begun < kOperations ? 1 : begun - kOperations + 1, after + 1);
  // The last ones first: they are overwritten last.
  trace.operations.reserve(begun >= first ? begun - first + 1 : 0);
  for (uint64_t nth = begun; nth >= first; nth--) {
    TracedOperation operation;
    if (!read_slot(memory.slots[nth % kOperations], nth, clock, &operation)) continue;
    if (const uint64_t place = to_place(operation.caller); place != 0)
      operation.place = memory.places[place % TraceMemory::kPlaces].read(place);
    trace.operations.push_back(std::move(operation));
  }
  std::reverse(trace.operations.begin(), trace.operations.end());
  if (!trace.is_in_operation() || trace.last()->nth != waiting) trace.wait = {};
  return trace;
}

}  // namespace

TickClock::TickClock(const TraceHeader& header)
    : by_cpu_(header.by_cpu != 0), made_ticks_(header.made_ticks), made_ns_(header.made_ns) {
  const uint64_t now = ticks(by_cpu_);
  read_ns_ = now_ns();
  const auto passed = static_cast<double>(now - made_ticks_);
  ns_per_tick_ = !by_cpu_ || passed <= 0 ? 1 : static_cast<double>(read_ns_ - made_ns_) / passed;
}

int64_t TickClock::to_ns(uint64_t at) const {
  const double passed = static_cast<double>(static_cast<int64_t>(at - made_ticks_)) * ns_per_tick_;
  constexpr auto kMost = static_cast<double>(kMostNs);
  return made_ns_ + static_cast<int64_t>(std::clamp(passed, -kMost, kMost));
}

Result<TraceFile> TraceFile::open(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // it may be a pipe
  if (!file) return system_error("open " + path, errno);
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return system_error("stat " + path, errno);
  const Error foreign{Code::kInvalidArgument, path + " is not a flight recorder's file of this version of Tutti"};
  if (!S_ISREG(info.st_mode) || static_cast<size_t>(info.st_size) != sizeof(TraceMemory)) return foreign;
  TraceFile opened;
  opened.memory_ = map_shared(file, 0, sizeof(TraceMemory), false);
  if (!opened.memory_) return system_error("mmap " + path, errno);
  if (!is_sound(opened.header())) return foreign;
  return opened;
}

Trace TraceFile::read(const TickClock& clock, uint64_t nth) const {
  return tutti::read(memory(), clock, nth);
}

Trace TraceFile::read_end(const TickClock& clock) const {
  constexpr uint64_t kSome = 8;  // several, as the last one may be incomplete
  const uint64_t begun = header().begun.load(std::memory_order_acquire);
  return read(clock, begun - std::min(begun, kSome));
}

uint64_t read_from(const TraceHeader& header, uint64_t nth) {
  constexpr uint64_t kSample = 128;
  const uint64_t begun = header.begun.load(std::memory_order_acquire);
  return begun > nth && begun - nth > TraceMemory::kOperations ? begun - kSample : nth;
}

Trace read_trace(const Recorder& recorder, uint64_t nth) {
  Trace trace = read(recorder.memory(), TickClock(recorder.header()), nth);
  trace.is_own = true;
  return trace;
}

Result<Trace> read_trace(const std::string& path) {
  TUTTI_TRY_ASSIGN(const TraceFile file, TraceFile::open(path));
  return file.read(TickClock(file.header()));
}

uint64_t bytes_of(const Call& call) {
  return static_cast<int>(call.dtype) < kDataTypes ? call.count * dtype_bytes(call.dtype) : 0;
}

std::string to_text(const TracedOperation& operation) {
  const Call& call = operation.call;
  if (!is_point_to_point(call)) return to_text(call);
  const auto direction = static_cast<Direction>(call.op);
  if (direction == Direction::kSeveral) return format("%lu messages of %lu bytes in all", call.blocks, call.count);
  return format("%s(count=%lu, %s, peer=%d)", direction == Direction::kSend ? "Send" : "Recv", call.count,
                dtype_name(call.dtype), call.root);
}

std::string place_of(const Trace& trace, const TracedOperation& operation) {
  const void* const caller = operation.caller;
  if (caller == nullptr || !operation.place.empty()) return operation.place;
  if (to_place(caller) != 0) return "";  // forgotten
  Dl_info info{};
  if (!trace.is_own || dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return format("%p", caller);
  const void* const from = info.dli_sname != nullptr ? info.dli_saddr : info.dli_fbase;
  return format("%s+0x%zx in %s", info.dli_sname != nullptr ? info.dli_sname : "",
                static_cast<size_t>(static_cast<const char*>(caller) - static_cast<const char*>(from)), info.dli_fname);
}

}  // namespace tutti
