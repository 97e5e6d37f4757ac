// This header: the flight recorder. Every communicator keeps its last 1,024 operations on this rank, each with its
// times and who called it: to say what this rank did when a peer turns out to have done something else, and for people
// who ask why a job hangs. They lie in a file in shared memory, so that they can be read from outside while the process
// hangs, and after it was killed (trace.h reads them). Where there is no room for a file the memory is private.
//
// Threading: begin(), end(), waits() and finds() belong to one thread at a time, the one whose turn it is,
// tell_lateness() to the one that watches the peers; the others are for any thread, but nothing is under way when it is
// shared. What is read while it is written may be left out, but is never half of one operation and half of another.
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

// Time as cheap as the CPU has it, for what is stamped on every operation. Of unknown length: whoever reads ticks takes
// two points in time by both clocks.
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

// What the file begins with. A tool of another version recognises that by the magic number.
struct TraceHeader {
  static constexpr uint64_t kMagic = 0x7475'7474'6974'7204;  // the last byte is the format's number
  static constexpr size_t kMostAwaited = 64;
  uint64_t magic, group;  // the same on all of its ranks
  int32_t rank, n_ranks, pid, by_cpu;
  uint64_t process_start, pid_namespace;  // so that no other process is taken for this one
  uint64_t made_ticks;
  int64_t made_ns, made_real_ns;  // the same moment, by the monotonic clock and by the calendar's
  char host[64], program[64];
  char error[1024];  // once has_failed
  alignas(64) std::atomic<uint64_t> begun;
  alignas(64) std::atomic<uint64_t> has_failed;
  // What the operation with this number has waited for when it was last looked at, which takes a tenth of a second.
  // Each: 2 * rank, and 1 more where it is to take a message.
  std::atomic<uint64_t> waiting_nth, waiting_since_ns, n_awaited;
  std::atomic<uint32_t> awaited[kMostAwaited];
  // Why the operation with this number waits, where ranks of other hosts have been asked.
  std::atomic<uint64_t> found_nth;
  char found[1024];
  // Which rank comes late, of all hosts: a tool asks by another number, the process answers with that.
  std::atomic<uint64_t> lateness_asked, lateness_answered;
  char lateness[256];
};

// One operation: sequence to blocks are its tag's words (see to_tag), the upper half of blocks for how long it was in a
// queue. `finished` is 0 while it is under way, and its last bit says that it failed.
struct alignas(64) TraceSlot {
  static constexpr int kQueuedShift = 10;  // ticks in a queue are kept by the 1,024
  std::atomic<uint64_t> nth, sequence, count, kinds, blocks, caller, started, finished;

  Call call() const;  // half another one's if `nth` is not the same before and afterwards
  bool is_message() const;
  const void* place_or_caller() const { return reinterpret_cast<const void*>(caller.load(std::memory_order_acquire)); }
};

// The name of a place that called (see places.h). Written before the operations that have its number, which is 0
// meanwhile.
struct alignas(64) TracePlace {
  std::atomic<uint64_t> number;
  char name[kMostPlaceBytes + 1];

  bool has(uint64_t place) const { return number.load(std::memory_order_relaxed) == place; }
  [[gnu::cold, gnu::noinline]] void keep(uint64_t place);
  std::string read(uint64_t place) const;  // empty where it has another one's name
};

// The file: the last operations by the remainders of their numbers, and the places' names likewise.
struct TraceMemory {
  static constexpr size_t kHeaderBytes = 4096;
  static constexpr uint64_t kOperations = 1024, kPlaces = 128;
  TraceHeader header;
  alignas(kHeaderBytes) TraceSlot slots[kOperations];
  TracePlace places[kPlaces];

  // The call with this number, or one with sequence 0 when it is too long ago or yet to come. Of the last ones, not of
  // messages.
  Call find(uint64_t sequence) const;
  bool is_past(uint64_t sequence) const;
  // " (all_reduce of float32[4] at train.py:41)": the name of the place that called it, or nothing.
  std::string place_text(uint64_t sequence) const;
  std::string last_place_text() const;  // of the last operation, or messages

 private:
  const TraceSlot* last_up_to(uint64_t sequence) const;
};
static_assert(sizeof(TraceSlot) == 64 && sizeof(TracePlace) == 128);
static_assert(sizeof(TraceMemory) == TraceMemory::kHeaderBytes + TraceMemory::kOperations * sizeof(TraceSlot) +
                                         TraceMemory::kPlaces * sizeof(TracePlace));

// Of the operation's place in the recorder. Point-to-point messages are recorded by exchange: `root` is the peer if
// there is but one, `blocks` the number of messages.
enum class Direction : uint8_t { kSeveral = 0, kSend = 1, kReceive = 2 };  // in RedOp's place

class Recorder {
 public:
  Recorder();  // in private memory
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // From now on in a file, before the first operation. What keeps it from that is logged, once in a process. `sweeps`:
  // it also looks at what processes that have ended left, unless this one has done so.
  void share(int rank, int n_ranks, uint64_t group, bool sweeps = false);

  // The call's tag, under a number that is not read from it: that may just have been written. created: ticks, if it
  // was called some time ago.
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
      probe_begin(slot, memory_->header.rank);
  }
  void begin(const Call& call) { begin(to_tag(call), call.sequence); }
  // The last one has ended well.
  void end() { finish(slots_[begun_ % TraceMemory::kOperations], true); }
  // The same, if there is one that has not ended.
  void end(bool well);
  // It has waited for these ranks for so long.
  struct Awaited {
    int rank;
    bool takes;  // a message of this rank's
  };
  void waits(int64_t idle_ns, std::span<const Awaited> awaited);
  // The sentence on why it waits, for those who cannot ask ranks of other hosts.
  void finds(const std::string& why);
  // For a tool that has asked with this number which rank comes late; 0: none has.
  uint64_t lateness_asked() const { return header().lateness_asked.load(std::memory_order_acquire); }
  void tell_lateness(uint64_t asked, const std::string& sentence);
  // Why the group has ended: the first time that it is told. True then.
  bool fail(const std::string& message);

  uint64_t now() const { return ticks(by_cpu_); }
  const TraceMemory& memory() const { return *memory_; }
  const TraceHeader& header() const { return memory_->header; }
  // Empty where there is no file.
  const std::string& path() const { return path_; }

 private:
  void finish(TraceSlot& slot, bool well) {
    slot.finished.store((now() & ~uint64_t{1}) | (well ? 0 : 1), std::memory_order_release);
    if (tutti_operation_end_semaphore != 0) [[unlikely]]
      probe_end(slot, memory_->header.rank);
  }
  static uint64_t queued(uint64_t ticks) { return std::min<uint64_t>(ticks >> TraceSlot::kQueuedShift, 0xffffffff); }
  void use(void* memory);

  TraceMemory* memory_ = nullptr;
  TraceSlot* slots_ = nullptr;  // in it: with the struct's address each operation takes 8 instructions more
  uint64_t begun_ = 0;
  const bool by_cpu_;
  std::string path_;
};

// All recorders of this process, one after the other; none of them ends meanwhile.
void for_each_recorder(const std::function<void(const Recorder&)>& visit);

// What this rank called when its peer called `theirs`, if that is not too long ago; else `mine`.
Call counterpart(const Call& mine, const Call& theirs, const Recorder& recorder);

// What to say when a message of `theirs` from `peer` meets `mine` on rank `my_rank`.
Error mismatch_error(int my_rank, const Call& mine, int peer, const Call& theirs, const Recorder& recorder);

}  // namespace tutti
