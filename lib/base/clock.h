// Monotonic time and deadlines.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace tutti {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// When a wait gives up: at a point in time, or earlier if somebody cancels it. Copyable; passed down so that one limit
// covers a whole operation.
class Deadline {
 public:
  static Deadline after_seconds(double seconds) { return Deadline(now_ns() + static_cast<int64_t>(seconds * 1e9)); }
  static Deadline never() { return Deadline(INT64_MAX); }
  Deadline or_when(std::function<bool()> cancelled) const {
    Deadline sooner = *this;
    sooner.cancelled_ = std::make_shared<const std::function<bool()>>(
        [before = cancelled_, by = std::move(cancelled)] { return (before && (*before)()) || by(); });
    return sooner;
  }
  Deadline within_seconds(double seconds) const {
    Deadline sooner = *this;
    sooner.at_ns_ = std::min(at_ns_, after_seconds(seconds).at_ns_);
    return sooner;
  }
  Deadline plus_seconds(double seconds) const {
    Deadline later = *this;
    if (at_ns_ != INT64_MAX) later.at_ns_ += static_cast<int64_t>(seconds * 1e9);
    return later;
  }
  // Later by the time that has passed since `then_ns`.
  Deadline extended_since(int64_t then_ns) const {
    return plus_seconds(static_cast<double>(now_ns() - then_ns) * 1e-9);
  }
  bool passed() const { return cancelled() || (at_ns_ != INT64_MAX && now_ns() >= at_ns_); }
  // For poll(2): whole milliseconds left, rounded up, at most `cap_ms`, never negative. Cancelling does not wake a
  // sleeper: sleep in short intervals.
  int left_ms(int cap_ms) const {
    if (cancelled()) return 0;
    if (at_ns_ == INT64_MAX) return cap_ms;
    const int64_t left = (at_ns_ - now_ns() + 999999) / 1000000;
    return left <= 0 ? 0 : left < cap_ms ? static_cast<int>(left) : cap_ms;
  }

 private:
  explicit Deadline(int64_t at_ns) : at_ns_(at_ns) {}
  bool cancelled() const { return cancelled_ && (*cancelled_)(); }

  int64_t at_ns_;
  std::shared_ptr<const std::function<bool()>> cancelled_;
};

}  // namespace tutti
