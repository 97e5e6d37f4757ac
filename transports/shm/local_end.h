// What a link has instead of a socket if both ranks are threads of one process: each end wakes the other, and knows
// whether the other is still there. With sockets, each of eight such ranks held nine of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/fd.h"

namespace tutti::shm {

// Wakes an endpoint's thread, whichever of its links rings.
class Bell {
 public:
  bool open();  // false: this process is out of descriptors
  int fd() const { return fd_.get(); }
  void ring() const;
  void hush() const;

 private:
  Fd fd_;
};

// One thread at a time: the one that the bell wakes.
class LocalEnd {
 public:
  // Called by the sender before the receiver gets the segment with this number, and then by the receiver. The number is
  // random, so nobody outside this process can name it. Null if the receiver finds no sender's end with this number
  // here, or if there is no descriptor for a bell.
  static std::unique_ptr<LocalEnd> meet(uint64_t id, std::shared_ptr<Bell> bell, bool receives);
  ~LocalEnd();
  LocalEnd(const LocalEnd&) = delete;
  LocalEnd& operator=(const LocalEnd&) = delete;

  bool is_joined() const { return pair_->joined.load(std::memory_order_acquire); }
  // These only if is_joined(). fd() is readable once the other end has rung; then call hush().
  int fd() const { return bell().fd(); }
  void hush() const { bell().hush(); }
  void ring_other() const { pair_->bells[!receives_]->ring(); }
  // If true, everything that the other end did before is visible.
  bool other_has_left() const { return pair_->left[!receives_].load(std::memory_order_acquire); }

  // Shared by both ends.
  struct Pair {
    const uint64_t id;
    std::shared_ptr<Bell> bells[2];  // the sender's and, once joined, the receiver's
    std::atomic<bool> joined{false}, left[2]{};
  };

 private:
  LocalEnd(std::shared_ptr<Pair> pair, bool receives) : pair_(std::move(pair)), receives_(receives) {}
  Bell& bell() const { return *pair_->bells[receives_]; }

  const std::shared_ptr<Pair> pair_;
  const bool receives_;
};

}  // namespace tutti::shm
