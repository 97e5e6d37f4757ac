// What a link has instead of a socket where both ranks are threads of one process: each end wakes the other, and knows
// whether that is still there. With sockets each of eight such ranks held nine of them.
#pragma once

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
  // The sender's, before the receiver has the segment with this number. That is random, so nobody outside of this
  // process can name it; null where there is no descriptor for a bell.
  static std::unique_ptr<LocalEnd> offer(uint64_t id, std::shared_ptr<Bell> bell);
  // The receiver's; null if nothing with this number is on offer here.
  static std::unique_ptr<LocalEnd> join(uint64_t id, std::shared_ptr<Bell> bell);
  ~LocalEnd();
  LocalEnd(const LocalEnd&) = delete;
  LocalEnd& operator=(const LocalEnd&) = delete;

  bool is_joined() const;
  // From here on once it is. Readable when this end was rung for; then hush().
  int fd() const { return bell_->fd(); }
  void hush() const { bell_->hush(); }
  void ring_other() const;
  // What the other end did before is seen then.
  bool other_has_left() const;

  struct Pair;  // both ends'

 private:
  LocalEnd(std::shared_ptr<Pair> pair, std::shared_ptr<Bell> bell, bool receives)
      : pair_(std::move(pair)), bell_(std::move(bell)), receives_(receives) {}

  const std::shared_ptr<Pair> pair_;
  const std::shared_ptr<Bell> bell_;
  const bool receives_;
};

}  // namespace tutti::shm
