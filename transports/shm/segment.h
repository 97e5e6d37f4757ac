// shm: links through a memory segment that both ranks map. The segment is a memfd handed over by descriptor on a UNIX
// socket, so neither a small /dev/shm nor a leftover file matters; the kernel frees it with the last mapping. The
// socket stays open, to wake a sleeping peer and to tell of its death, unless the peer is in this process. This header:
// the segment's layout. One thread per side; the two sides synchronise through the atomics below.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/result.h"
#include "transports/shm/revocable_access.h"
#include "tutti/transport.h"

namespace tutti::shm {

// One writer per cache line, except for the two sleep flags, which are rarely written.
struct SegmentHeader {
  // Receiver: how many messages it has released. Stored after it has read the payload (release), loaded by the sender
  // before it writes the slot again (acquire).
  alignas(kCacheLine) std::atomic<uint64_t> released;
  // Set by a side before it sleeps, cleared by the other when it rings. The sleeper stores its flag and then looks once
  // more, the other side stores its progress and then looks at the flag, so at least one of them must see the other:
  // both need a barrier in between. See SleepBarrier.
  alignas(kCacheLine) std::atomic<uint32_t> receiver_sleeps;
  alignas(kCacheLine) std::atomic<uint32_t> sender_sleeps;
  // 1 + the CPU on which each side last had to wait for the other; 0: it has not. Hints.
  alignas(kCacheLine) std::atomic<uint32_t> receiver_cpu_plus_1;
  std::atomic<uint32_t> sender_cpu_plus_1;
  RevocableAccess<> reading;  // the receiver reads what the sender exposes
  RevocableAccess<> placing;  // the sender writes where the receiver has posted
  // Receiver: the number of the message for which it has posted a place of its own (stored last, release; the sender
  // loads it first, acquire), its length and where it is, as in a SlotLine. Stays until that message has been received.
  alignas(kCacheLine) std::atomic<uint64_t> posted;
  uint32_t posted_bytes;
  uint32_t posted_where;
  uint64_t posted_at;
  alignas(kCacheLine) uint64_t id;                    // random
  uint32_t sender_has_barrier, receiver_has_barrier;  // membarrier_is_there()
  // Sender: the id of the link in the other direction whose payloads it sends back on this one, once it has both.
  std::atomic<uint64_t> paired_with;
};

// Where a message's bytes are, in this order: in the slot's payload; in half of one; in the slot's line; behind the
// line; in a payload passed on, of this link's segment; in one passed back, of the segment of the link in the other
// direction; where the receiver posted a place; at an address of their common process; from kFirstBlock up: at an
// offset in the block of shared memory with this number.
inline constexpr uint32_t kInSlot = 0, kInHalf = 1, kInLine = 2, kBehindLine = 3, kPassedOn = 4, kPassedBack = 5,
                          kInPlace = 6, kAtAddress = 7, kFirstBlock = 8;
inline constexpr uint32_t kLineBytes = 16, kBehindBytes = 512;

// Flag, tag, length and a few bytes share one cache line, so that the smallest messages cost one line transfer. The
// bytes of slightly larger messages are behind it, where the receiver can fetch them before it knows the message.
struct SlotLine {
  // Sender: number of the message in the slot, counted from 1. Stored after the payload and the rest of this line
  // (release), loaded by the receiver before it reads them (acquire).
  alignas(kCacheLine) std::atomic<uint64_t> published;
  tuttiTag tag;
  uint32_t bytes;
  uint32_t where;
  union {
    char small[kLineBytes];
    uint64_t at;
  };
  char behind[kBehindBytes];
};
static_assert(offsetof(SlotLine, behind) == kCacheLine);

static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share these");

// Reads a word once: a malicious peer could change it between a check and its use.
template <class Word>
Word read_once(const Word& word) {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}

// The barrier between a store and a later load, where one side is on every message's path and the other about to sleep.
// Where the kernel can run a barrier on all CPUs (membarrier), the sleeper requests that and the busy side needs none;
// else the busy side waits for its store to reach the other core, about a tenth of a microsecond.
class SleepBarrier {
 public:
  // `by_kernel`: membarrier_is_there() at both ends of the link.
  explicit SleepBarrier(bool by_kernel = false) : by_kernel_(by_kernel) {}
  void busy_side() const {
    if (by_kernel_)
      std::atomic_signal_fence(std::memory_order_seq_cst);  // membarrier orders what the CPU does, not the compiler
    else
      std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void sleepy_side() const;

 private:
  bool by_kernel_;
};

class Segment {
 public:
  // Creates the memory; `memfd` is what the peer needs.
  static Result<Segment> create(uint32_t slots, uint32_t slot_bytes, Fd* memfd);
  // Maps a peer's segment, after checking that it has the right size and cannot shrink under our feet.
  static Result<Segment> map(const Fd& memfd, uint32_t slots, uint32_t slot_bytes);

  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_.get()); }
  SlotLine& line(uint32_t n) const {
    return *reinterpret_cast<SlotLine*>(base_.get() + sizeof(SegmentHeader) + n * sizeof(SlotLine));
  }
  explicit operator bool() const { return base_ != nullptr; }
  const std::shared_ptr<char>& base() const { return base_; }
  // Uses another mapping of the same segment.
  void use(std::shared_ptr<char> base) {
    payload_ = base.get() + (payload_ - base_.get());
    base_ = std::move(base);
  }
  // The slots' own payloads, followed by as many to exchange: see exchange.h.
  char* payload(uint32_t slot) const { return payload_ + static_cast<size_t>(slot) * slot_bytes_; }
  // The payload of a line's message, or its half of one: two lines share a payload.
  char* payload_of(uint32_t line, bool in_half) const {
    const bool is_second = line >= slots_;
    return payload(is_second ? line - slots_ : line) + (is_second && in_half ? half_bytes() : 0);
  }
  uint32_t half_bytes() const { return slot_bytes_ / (2 * kCacheLine) * kCacheLine; }  // aligned as a whole one is
  uint32_t lines() const { return 2 * slots_; }
  uint32_t slots() const { return slots_; }
  uint32_t slot_bytes() const { return slot_bytes_; }

 private:
  std::shared_ptr<char> base_;
  char* payload_ = nullptr;
  uint32_t slots_ = 0;
  uint32_t slot_bytes_ = 0;
};

}  // namespace tutti::shm
