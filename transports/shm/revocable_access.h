// Access to memory that the other side owns and may take back: a receiver reads what is exposed, a sender writes a sum
// where the receiver has posted a place. One side begins and ends accesses and never waits; the owner revokes and waits
// until none is in progress. One thread per side.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tutti::shm {

inline constexpr size_t kCacheLine = 64;

// Lives, zeroed at first, in memory that both sides map. tests/transports/revocable_access_test.cpp runs this code in
// every order of both sides' steps and stores.
// 1. After revoke(), once is_used() is false, no access is in progress or begins: each side stores its word and then
//    loads the other's, so one sees the other if no load overtakes the store before it. Only seq_cst promises that.
// 2. Then what accesses wrote is visible to the owner, and they have not read what the owner writes later: end()
//    releases, is_used() acquires.
// 3. An owner that does not wait writes only after an is_used(), so after revoke(), too. A reader that saw such a write
//    finds itself revoked if it checks after reading: hence the fence, as an acquire load holds no earlier loads back.
template <class Word = std::atomic<uint32_t>>
class RevocableAccess {
 public:
  // For the side that accesses the memory. False: its access was revoked.
  bool begin() {
    in_use_.store(1, std::memory_order_seq_cst);
    if (revoked_.load(std::memory_order_seq_cst) == 0) return true;
    end();
    return false;
  }
  void end() { in_use_.store(0, std::memory_order_release); }
  // Whether what was read since begin() may have been overwritten, because the owner did not wait.
  bool was_revoked() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return revoked_.load(std::memory_order_relaxed) != 0;
  }

  // For the owner: revoke() is final; then wait until is_used() is false.
  void revoke() { revoked_.store(1, std::memory_order_seq_cst); }
  bool is_used() const { return in_use_.load(std::memory_order_seq_cst) != 0; }

 private:
  alignas(kCacheLine) Word in_use_;  // one cache line per writing side
  alignas(kCacheLine) Word revoked_;
};

}  // namespace tutti::shm
