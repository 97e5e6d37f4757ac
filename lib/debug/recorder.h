// This header: the flight recorder. Every communicator keeps its last 1,024 operations on this rank, each with its
// times and its caller: to say what this rank did when a peer turns out to have done something else, and for people who
// ask why a job hangs. They are in a file in shared memory, so that they can be read from outside while the process
// hangs, and after it was killed (trace.h reads them). If there is no room for a file, the memory is private.
//
// Threading: begin(), end(), record_wait() and record_reason() belong to one thread at a time, the one whose turn it
// is, tell_lateness() to the one that watches the peers; the others are for any thread, but share() only while nothing
// is under way. An entry read while it is written may be left out, but is never a mixture of two operations.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/places.h"
#include "base/result.h"
#include "debug/call.h"
#include "debug/probes.h"

namespace tutti {

// The CPU's cheapest clock, for the time stamps of every operation. A tick's length is unknown: readers convert ticks
// with two points in time taken by both clocks.
inline uint64_t ticks([[maybe_unused]] bool by_cpu) {
#if defined(__x86_64__)
  if (by_cpu) return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  if (by_cpu) {
    uint64_t count;
    asm volatile("mrs %0, cntvct_el0" : "=r"(count));
    return count;
  }
#endif
  return static_cast<uint64_t>(now_ns());
}

// The start of the file. A tool of another version recognises by the magic number that it cannot read it.
struct TraceHeader {
  static constexpr uint64_t kMagic = 0x7475'7474'6974'7205;  // the last byte is the format's number
  static constexpr size_t kMostAwaited = 64;
  uint64_t magic, group;  // group: the same on all of its ranks
  int32_t rank, n_ranks, pid, by_cpu;
  uint64_t process_start, pid_namespace;  // so that no other process is taken for this one
  uint64_t made_ticks;
  int64_t made_ns, made_real_ns;  // the same moment, by the monotonic clock and the wall clock
  char host[64], program[64];
  char error[1024];  // valid once has_failed is 2
  alignas(64) std::atomic<uint64_t> begun;
  alignas(64) std::atomic<uint64_t> has_failed;
  // The ranks that operation `waiting_nth` waited for when it was last checked, first after a tenth of a second.
  std::atomic<uint64_t> waiting_nth, waiting_since_ns, n_awaited;
  std::atomic<int32_t> awaited[kMostAwaited];
  // Why operation `found_nth` waits, if ranks of other hosts have been asked.
  std::atomic<uint64_t> found_nth;
  char found[1024];
  // Which rank of all hosts comes late: a tool asks with a new number, and the process answers with the same.
  std::atomic<uint64_t> lateness_asked, lateness_answered;
  char lateness[256];
};

// One operation: sequence to blocks are its tag's words (see to_tag), but the upper half of blocks is its time in a
// queue. `finished` is 0 while it is under way, and its lowest bit says that it failed.
struct alignas(64) TraceSlot {
  static constexpr int kQueuedShift = 10;  // the time in a queue is kept in units of 1,024 ticks
  std::atomic<uint64_t> nth, sequence, count, kinds, blocks, caller, started, finished;

  Call call() const;  // a mixture of two calls if `nth` is not the same before and afterwards
  bool is_message() const;
  const void* place_or_caller() const { return reinterpret_cast<const void*>(caller.load(std::memory_order_acquire)); }
};

// The name of a place that called (see places.h). Written before the operations that have its number; `number` is 0
// while it is written.
struct alignas(64) TracePlace {
  std::atomic<uint64_t> number;
  char name[kMostPlaceBytes + 1];

  bool has(uint64_t place) const { return number.load(std::memory_order_relaxed) == place; }
  [[gnu::cold, gnu::noinline]] void keep(uint64_t place);
  std::string read(uint64_t place) const;  // empty if it has another place's name
};

// The file: the last operations, each at its number modulo kOperations, and the places' names likewise.
struct TraceMemory {
  static constexpr size_t kHeaderBytes = 4096;
  static constexpr uint64_t kOperations = 1024, kPlaces = 128;
  TraceHeader header;
  alignas(kHeaderBytes) TraceSlot slots[kOperations];
  TracePlace places[kPlaces];

  // The collective with this sequence number; one with sequence 0 if it is too long ago or has not begun.
  Call find(uint64_t sequence) const;
  bool is_past(uint64_t sequence) const;
  // " (all_reduce of float32[4] at train.py:41)": the name of the place that called it, or nothing.
  std::string place_text(uint64_t sequence) const;
  std::string last_place_text() const;  // of the last operation, even if that is messages

 private:
  const TraceSlot* last_up_to(uint64_t sequence) const;
};
static_assert(sizeof(TraceSlot) == 64 && sizeof(TracePlace) == 128);
static_assert(sizeof(TraceMemory) == TraceMemory::kHeaderBytes + TraceMemory::kOperations * sizeof(TraceSlot) +
                                         TraceMemory::kPlaces * sizeof(TracePlace));

// How point-to-point messages are recorded: one entry for each exchange, in which `root` is the peer if there is only
// one, and `blocks` the number of messages.
enum class Direction : uint8_t { kSeveral = 0, kSend = 1, kReceive = 2 };  // in RedOp's place

class Recorder {
 public:
  // In private memory. `on_gpu`: its operations are seen to have ended only later, perhaps by another thread.
  explicit Recorder(bool on_gpu = false);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Moves to a file; call before the first operation. A failure is logged, once per process. `sweeps`: also sweeps the
  // files that ended processes have left, unless this process has done so in the last minutes and none of its
  // communicators has failed since. `trace_file`: where its traces go on SIGTERM.
  void share(int rank, int n_ranks, uint64_t group, bool sweeps = false, const std::string& trace_file = "");

  // `call` is the tag; the number is not read from it, since it may have been written there only just now. `created`:
  // in ticks, if the operation was called some time ago.
  void begin(const TagWords& call, uint64_t sequence, const void* caller = nullptr, uint64_t created = 0) {
    const uint64_t nth = ++begun_;
    TraceSlot& slot = slots_[nth % TraceMemory::kOperations];
    const auto set = [](std::atomic<uint64_t>& word, uint64_t value) { word.store(value, std::memory_order_release); };
    set(slot.nth, 0);
    const uint64_t now = this->now();
    set(slot.sequence, sequence);
    set(slot.count, call[1]);
    set(slot.kinds, call[2]);
    set(slot.blocks, call[3] | (created == 0 ? 0 : queued(now - created)) << 32);
    set(slot.caller, reinterpret_cast<uintptr_t>(caller));
    if (const uint64_t place = to_place(caller); place != 0)
      if (TracePlace& to = memory_->places[place % TraceMemory::kPlaces]; !to.has(place)) to.keep(place);
    set(slot.started, now);
    set(slot.finished, 0);
    set(slot.nth, nth);
    memory_->header.begun.store(nth, std::memory_order_release);
    if (tutti_operation_begin_semaphore != 0) [[unlikely]]
      probe_begin(slot, memory_->header.rank, !on_gpu_);
  }
  void begin(const Call& call) { begin(to_tag(call), call.sequence); }
  // The last operation has succeeded.
  void end() { finish(slots_[begun_ % TraceMemory::kOperations], true); }
  // Ends the last operation, if there is one that has not ended.
  void end(bool well);
  // The last operation has waited for these ranks for `idle_ns`.
  void record_wait(int64_t idle_ns, std::span<const int> ranks);
  // Records the sentence on why it waits, for readers who cannot ask ranks of other hosts.
  void record_reason(const std::string& why);
  // The number with which a tool has asked which rank comes late; 0: none has asked.
  uint64_t lateness_asked() const { return header().lateness_asked.load(std::memory_order_acquire); }
  void tell_lateness(uint64_t asked, const std::string& sentence);
  // Records why the group has ended, but only the first time. True if this was the first.
  bool fail(const std::string& message);

  uint64_t now() const { return ticks(by_cpu_); }
  const TraceMemory& memory() const { return *memory_; }
  const TraceHeader& header() const { return memory_->header; }
  bool is_on_gpu() const { return on_gpu_; }
  // Empty if there is no file.
  const std::string& path() const { return path_; }
  const std::string& trace_file() const { return trace_file_; }

 private:
  void finish(TraceSlot& slot, bool well) {
    slot.finished.store((now() & ~uint64_t{1}) | (well ? 0 : 1), std::memory_order_release);
    if (tutti_operation_end_semaphore != 0) [[unlikely]]
      probe_end(slot, memory_->header.rank, !on_gpu_);
  }
  static uint64_t queued(uint64_t ticks) { return std::min<uint64_t>(ticks >> TraceSlot::kQueuedShift, 0xffffffff); }
  void use(void* memory);

  TraceMemory* memory_ = nullptr;
  TraceSlot* slots_ = nullptr;  // memory_->slots: without this pointer each operation takes 8 instructions more
  uint64_t begun_ = 0;
  const bool by_cpu_, on_gpu_;
  std::string path_, trace_file_;
};

// All recorders of this process, one after the other; none of them is destroyed meanwhile.
void for_each_recorder(const std::function<void(const Recorder&)>& visit);

// What this rank called as the operation with the number of `theirs`, if that is not too long ago; else `mine`.
Call counterpart(const Call& mine, const Call& theirs, const Recorder& recorder);

// The error when a message of `theirs` from `peer` meets `mine` on rank `my_rank`.
Error mismatch_error(int my_rank, const Call& mine, int peer, const Call& theirs, const Recorder& recorder);

}  // namespace tutti
