// Access to memory that the other side owns and may take back: a receiver reads what is exposed, a sender writes a sum
// where the receiver has posted a place. One side begins and ends accesses and never waits; the owner revokes and waits
// until none goes on. One thread per side.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tutti::shm {

inline constexpr size_t kCacheLine = 64;

// Lies zeroed in memory that both sides map. tests/transports/revocable_access_test.cpp runs this code in every order
// of both sides' steps and stores.
// 1. After revoke(), once is_used() is false, no access goes on or begins: each side stores its word and then loads
//    the other's, so one sees the other if no load overtakes the store before it. Only seq_cst promises that.
// 2. Then what accesses wrote is there, and they have not read what the owner writes: end() releases, is_used()
//    acquires.
// 3. An owner that does not wait writes after an is_used(), so after revoke(), too. A reader that saw such a write
//    finds itself revoked if it looks after it has read: hence the fence, as no acquiring load holds earlier ones back.
template <class Word = std::atomic<uint32_t>>
class RevocableAccess {
 public:
  // Of the side that accesses the memory. False: it may not.
  bool begin() {
    in_use_.store(1, std::memory_order_seq_cst);
    if (revoked_.load(std::memory_order_seq_cst) == 0) return true;
    end();
    return false;
  }
  void end() { in_use_.store(0, std::memory_order_release); }
  // Whether what was read since begin() may be something else, because the owner did not wait.
  bool was_revoked() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return revoked_.load(std::memory_order_relaxed) != 0;
  }

  // Of the owner: for good, then is_used() until it is not.
  void revoke() { revoked_.store(1, std::memory_order_seq_cst); }
  bool is_used() const { return in_use_.load(std::memory_order_seq_cst) != 0; }

 private:
  alignas(kCacheLine) Word in_use_;  // a line for each side that writes
  alignas(kCacheLine) Word revoked_;
};

}  // namespace tutti::shm
