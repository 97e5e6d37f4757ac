// Who uses a communicator, and in which order its operations run. Users are counted, so that it goes only when nobody
// is there any more; operations run one at a time in the order of their tickets. Any thread. A handle's turnstile
// outlives the communicator, so whoever leaves may look at it afterwards.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace tutti {

class Turnstile {
 public:
  void enter() { word_.fetch_add(kUser); }
  // True for the last one.
  bool leave() { return users(word_.fetch_sub(kUser)) == 1; }
  bool has_users() const { return users(word_.load()) != 0; }
  void wait_until_left() {
    for (uint64_t word = word_.load(); users(word) != 0; word = word_.load()) word_.wait(word);
  }
  void wake_who_waits_until_left() { word_.notify_all(); }

  uint64_t take_ticket() { return word_.fetch_add(kTicket) / kTicket; }
  // One operation's turn; it ends also if the operation runs out of memory. sleepers_ and turn_ are stored before the
  // other is loaded (both sequentially consistent), so that either the sleeper sees its turn or the turn's end sees the
  // sleeper.
  class Turn {
   public:
    Turn(Turnstile& turnstile, uint64_t ticket) : turnstile_(turnstile) {
      if (turnstile_.turn_.load() != ticket) turnstile_.wait_for(ticket);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      turnstile_.turn_.fetch_add(1);
      turnstile_.wake_sleepers();
    }

   private:
    Turnstile& turnstile_;
  };
  // All tickets have had their turn.
  bool is_idle() const { return word_.load() / kTicket == turn_.load(); }

  // enter(), take_ticket() and the turn in one locked instruction, if nobody else is there and no ticket is out.
  bool enter_alone() {
    uint64_t word = turn_.load(std::memory_order_acquire) * kTicket;
    return word_.compare_exchange_strong(word, word + kTicket + kUser);
  }
  // Ends that turn; who came meanwhile may sleep for it. True for the last user. The locked instruction stands between
  // the store of turn_ and the load of sleepers_, and who comes after it sees the turn's end.
  bool leave_alone() {
    turn_.store(turn_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    const bool is_last = leave();
    if (!is_last) wake_sleepers();
    return is_last;
  }

 private:
  static constexpr uint64_t kUser = 1, kTicket = uint64_t{1} << 24;
  static uint64_t users(uint64_t word) { return word % kTicket; }
  void wait_for(uint64_t ticket) {
    std::unique_lock lock(mutex_);
    sleepers_++;
    turn_changed_.wait(lock, [&] { return turn_.load() == ticket; });
    sleepers_--;
  }
  void wake_sleepers() {
    if (sleepers_.load() == 0) return;
    const std::lock_guard lock(mutex_);
    turn_changed_.notify_all();
  }

  std::atomic<uint64_t> word_{0};  // the number of the next ticket, and below it the users
  std::atomic<uint64_t> turn_{0};
  std::atomic<int> sleepers_{0};  // threads that wait for their turn on turn_changed_
  std::mutex mutex_;
  std::condition_variable turn_changed_;
};

}  // namespace tutti
