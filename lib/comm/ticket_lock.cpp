#include "comm/ticket_lock.h"

#include "base/membarrier.h"

namespace tutti {

TicketLock::Entry TicketLock::enter_with_ticket() {
  uint64_t word = turn_.load(std::memory_order_acquire);
  if (!word_.compare_exchange_strong(word, word + kTicket + kUser)) return Entry::kNone;
  // Relaxed is enough: an owner was set in an earlier turn.
  const uintptr_t owner = owner_.load(std::memory_order_relaxed);
  if (owner == kNobody)
    owner_.store(membarrier_is_there() ? this_thread() : kEverybody, std::memory_order_release);
  else if (owner != kEverybody)
    take_from_owner();
  return Entry::kWithTicket;
}

// The locked instruction of leave() separates the store of turn_ from the load of sleepers_; a thread that comes after
// it sees the end of the turn. The last user wakes them, too: a GPU's thread takes turns without being counted.
bool TicketLock::leave_with_ticket() {
  turn_.store(turn_.load(std::memory_order_relaxed) + kTicket, std::memory_order_release);
  const bool is_last = leave();
  wake_sleepers();
  return is_last;
}

// In a turn of this thread, or once no operation begins any more. The owner stores owner_is_in_ and then loads owner_
// and word_, and when it leaves sleepers_; this is the other side of both.
void TicketLock::take_from_owner() {
  std::unique_lock lock(mutex_);
  sleepers_++;
  owner_.store(kEverybody);
  membarrier_everywhere();
  turn_changed_.wait(lock, [&] { return !owner_is_in_.load(std::memory_order_acquire); });
  sleepers_--;
}

void TicketLock::wait_for(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  sleepers_++;
  turn_changed_.wait(lock, [&] { return turn_.load() == ticket; });
  sleepers_--;
}

void TicketLock::wait_until_left() {
  if (other_thread_owns()) take_from_owner();
  for (uint64_t word = word_.load(); users(word) != 0; word = word_.load()) word_.wait(word);
  owner_.store(kNobody);  // a handle's next communicator may have another one
}

}  // namespace tutti
