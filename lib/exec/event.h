// A point in a stream that other streams and threads can wait for. All functions from any thread. Streams hold a shared
// owner of the events they are to reach or wait for, so an event may be dropped while it is still queued.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace tutti {

class Event {
 public:
  // Recording again moves the event: later waits are for the later point.
  uint64_t begin_record() {
    const std::lock_guard lock(mutex_);
    return ++recorded_;
  }
  void reach(uint64_t record) {
    const std::lock_guard lock(mutex_);
    if (record > reached_) reached_ = record;
    changed_.notify_all();
  }

  uint64_t last_record() const {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }
  bool reached(uint64_t record) const {
    const std::lock_guard lock(mutex_);
    return reached_ >= record;
  }
  void wait(uint64_t record) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= record; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t recorded_ = 0, reached_ = 0;
};

}  // namespace tutti
