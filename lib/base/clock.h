// Monotonic time and deadlines.
#pragma once

#include <chrono>
#include <cstdint>

namespace tutti {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A point in time after which a wait gives up. Copyable; passed down so that one limit covers a whole operation.
class Deadline {
 public:
  static Deadline after_seconds(double seconds) { return Deadline(now_ns() + static_cast<int64_t>(seconds * 1e9)); }
  static Deadline never() { return Deadline(INT64_MAX); }
  bool passed() const { return at_ns_ != INT64_MAX && now_ns() >= at_ns_; }
  // For poll(2): whole milliseconds left, rounded up, at most `cap_ms`, never negative.
  int left_ms(int cap_ms) const {
    if (at_ns_ == INT64_MAX) return cap_ms;
    const int64_t left = (at_ns_ - now_ns() + 999999) / 1000000;
    return left <= 0 ? 0 : left < cap_ms ? static_cast<int>(left) : cap_ms;
  }

 private:
  explicit Deadline(int64_t at_ns) : at_ns_(at_ns) {}
  int64_t at_ns_;
};

}  // namespace tutti
