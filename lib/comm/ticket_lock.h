// Who uses a communicator, and in which order its operations run. Users are counted, so that it is destroyed only when
// none is left; operations run one at a time in the order of their tickets. Any thread. A handle's ticket lock outlives
// the communicator, so a thread that leaves may look at it afterwards.
//
// The thread that uses it first owns it, until another thread has an operation to run: the owner's small operations
// need no locked instruction on their way in and out, two of which were a tenth of the time of 8 bytes between two
// ranks. A thread that takes the ownership away has the kernel run a barrier on all CPUs: so either it sees that the
// owner is in, or the owner sees that it is no longer the owner.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace tutti {

class TicketLock {
 public:
  // `begun` and ended: operations, so that a test sees the numbers wrap.
  explicit TicketLock(uint64_t begun = 0) : word_(begun * kTicket), turn_(begun * kTicket) {}
  void enter() { word_.fetch_add(kUser); }
  // True for the last user.
  bool leave() { return users(word_.fetch_sub(kUser)) == 1; }
  void wait_until_left();
  void wake_who_waits_until_left() { word_.notify_all(); }

  uint64_t take_ticket() { return ticket_of(word_.fetch_add(kTicket)); }
  // One operation's turn; it ends even if the operation runs out of memory. A sleeper stores sleepers_ and then loads
  // turn_, the end of a turn stores turn_ and then loads sleepers_ (all sequentially consistent): so either the sleeper
  // sees its turn, or the end sees the sleeper.
  class Turn {
   public:
    Turn(TicketLock& ticket_lock, uint64_t ticket) : ticket_lock_(ticket_lock) {
      if (ticket_lock_.turn_.load() != ticket) ticket_lock_.wait_for(ticket);
      if (ticket_lock_.other_thread_owns()) ticket_lock_.take_from_owner();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      ticket_lock_.turn_.fetch_add(kTicket);
      ticket_lock_.wake_sleepers();
    }

   private:
    TicketLock& ticket_lock_;
  };
  bool has_passed(uint64_t ticket) const { return static_cast<int64_t>(turn_.load() - ticket) > 0; }
  // All tickets have had their turn.
  bool is_idle() const { return ticket_of(word_.load()) == turn_.load(); }

  // enter(), take_ticket() and the turn at once, if no other operation runs or waits: as the owner, or in one locked
  // instruction.
  enum class Entry { kNone, kAsOwner, kWithTicket };
  Entry enter_alone() {
    const uintptr_t owner = owner_.load(std::memory_order_relaxed);
    if (owner == this_thread()) return enter_as_owner();
    return owner == kNobody || owner == kEverybody ? enter_with_ticket() : Entry::kNone;
  }
  // Ends that turn and wakes threads that came meanwhile and sleep. True for the last user.
  bool leave_alone(Entry entry) {
    if (entry == Entry::kWithTicket) return leave_with_ticket();
    owner_is_in_.store(false, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      wake_sleepers();
    return false;  // wait_until_left() takes the ownership away, and sleeps for that
  }

 private:
  static constexpr uint64_t kUser = 1, kTicket = uint64_t{1} << 32;
  static constexpr uintptr_t kNobody = 0, kEverybody = 1;  // no thread has these numbers
  static uint64_t users(uint64_t word) { return word % kTicket; }
  static uint64_t ticket_of(uint64_t word) { return word - users(word); }
  static uintptr_t this_thread() {
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
    return reinterpret_cast<uintptr_t>(__builtin_thread_pointer());  // the same, in one instruction
#else
    return static_cast<uintptr_t>(pthread_self());
#endif
  }

  Entry enter_as_owner() {
    owner_is_in_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // see take_from_owner()
    if (owner_.load(std::memory_order_relaxed) == this_thread() &&
        ticket_of(word_.load(std::memory_order_acquire)) == turn_.load(std::memory_order_acquire))
      return Entry::kAsOwner;
    leave_alone(Entry::kAsOwner);
    return Entry::kNone;
  }
  Entry enter_with_ticket();
  bool leave_with_ticket();
  bool other_thread_owns() const {
    const uintptr_t owner = owner_.load(std::memory_order_acquire);
    return owner != kNobody && owner != kEverybody && owner != this_thread();
  }
  void take_from_owner();
  void wait_for(uint64_t ticket);
  void wake_sleepers() {
    if (sleepers_.load() == 0) return;
    const std::lock_guard lock(mutex_);
    turn_changed_.notify_all();
  }

  // Tickets are multiples of kTicket and wrap around. Each queued operation is a user, and may hold a ticket.
  std::atomic<uint64_t> word_;  // the next ticket, and in the low 32 bits the users
  std::atomic<uint64_t> turn_;
  std::atomic<uintptr_t> owner_{kNobody};  // changed only in a turn, or at the end
  std::atomic<bool> owner_is_in_{false};   // inside, with no ticket and not counted as a user
  std::atomic<int> sleepers_{0};           // threads that wait on turn_changed_
  std::mutex mutex_;
  std::condition_variable turn_changed_;
};

}  // namespace tutti
