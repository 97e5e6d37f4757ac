// Monotonic time and deadlines.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

namespace tutti {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A point in time after which a wait gives up, or sooner, when somebody cancels it. Copyable; passed down so that one
// limit covers a whole operation.
class Deadline {
 public:
  using Cancelled = std::shared_ptr<const std::atomic<bool>>;

  static Deadline after_seconds(double seconds) { return Deadline(now_ns() + static_cast<int64_t>(seconds * 1e9)); }
  static Deadline never() { return Deadline(INT64_MAX); }
  Deadline or_when(Cancelled cancelled) const { return Deadline(at_ns_, std::move(cancelled)); }
  Deadline plus_seconds(double seconds) const {
    return Deadline(at_ns_ == INT64_MAX ? at_ns_ : at_ns_ + static_cast<int64_t>(seconds * 1e9), cancelled_);
  }
  bool passed() const { return cancelled() || (at_ns_ != INT64_MAX && now_ns() >= at_ns_); }
  // For poll(2): whole milliseconds left, rounded up, at most `cap_ms`, never negative. Nothing wakes a sleeper when it
  // is cancelled: sleep in short pieces.
  int left_ms(int cap_ms) const {
    if (cancelled()) return 0;
    if (at_ns_ == INT64_MAX) return cap_ms;
    const int64_t left = (at_ns_ - now_ns() + 999999) / 1000000;
    return left <= 0 ? 0 : left < cap_ms ? static_cast<int>(left) : cap_ms;
  }

 private:
  explicit Deadline(int64_t at_ns, Cancelled cancelled = nullptr) : at_ns_(at_ns), cancelled_(std::move(cancelled)) {}
  bool cancelled() const { return cancelled_ != nullptr && cancelled_->load(std::memory_order_relaxed); }

  int64_t at_ns_;
  Cancelled cancelled_;
};

}  // namespace tutti
