// What a link has instead of a socket where both ranks are threads of one process: each end wakes the other, and knows
// whether that is still there. With sockets each of eight such ranks held nine of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/fd.h"

namespace tutti::shm {

// Wakes an endpoint's thread, whichever of its links rings.
class Bell {
 public:
  bool open();  // false: this process can have no more descriptors
  int fd() const { return fd_.get(); }
  void ring() const;
  void hush() const;

 private:
  Fd fd_;
};

// One thread at a time, which is the bell's.
class LocalEnd {
 public:
  // The sender's, before the receiver has the segment with this number, and then the receiver's. The number is random,
  // so nobody outside of this process can name it. Null if a receiver finds nothing on offer here with it, and where
  // there is no descriptor for a bell.
  static std::unique_ptr<LocalEnd> meet(uint64_t id, std::shared_ptr<Bell> bell, bool receives);
  ~LocalEnd();
  LocalEnd(const LocalEnd&) = delete;
  LocalEnd& operator=(const LocalEnd&) = delete;

  bool is_joined() const { return pair_->joined.load(std::memory_order_acquire); }
  // From here on once it is. Readable when this end was rung for; then hush().
  int fd() const { return bell().fd(); }
  void hush() const { bell().hush(); }
  void ring_other() const { pair_->bells[!receives_]->ring(); }
  // What the other end did before is seen then.
  bool other_has_left() const { return pair_->left[!receives_].load(std::memory_order_acquire); }

  // Both ends'.
  struct Pair {
    const uint64_t id;
    std::shared_ptr<Bell> bells[2];  // the sender's, and the receiver's, which is there once it has joined
    std::atomic<bool> joined{false}, left[2]{};
  };

 private:
  LocalEnd(std::shared_ptr<Pair> pair, bool receives) : pair_(std::move(pair)), receives_(receives) {}
  Bell& bell() const { return *pair_->bells[receives_]; }

  const std::shared_ptr<Pair> pair_;
  const bool receives_;
};

}  // namespace tutti::shm
