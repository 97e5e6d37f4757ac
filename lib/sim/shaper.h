// This header: a token bucket, as the "virtual scheduling" of ITU-T I.371: bytes pass at a speed, one message after the
// other, and after a pause a burst of them passes at once. One thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tutti::sim {

class Shaper {
 public:
  // Starts without a burst, as after many messages.
  Shaper(double bytes_per_ns, double burst_bytes)
      : bytes_per_ns_(bytes_per_ns), burst_ns_(burst_bytes / bytes_per_ns), whole_ns_(burst_ns_) {}

  // When the next byte can pass.
  double free_ns(double now_ns) const { return std::max(now_ns, whole_ns_ - burst_ns_); }
  // How many of these bytes pass at once.
  double take(uint64_t bytes, double now_ns) {
    whole_ns_ = std::max(whole_ns_, now_ns);
    const double at_once =
        std::clamp((burst_ns_ - (whole_ns_ - now_ns)) * bytes_per_ns_, 0.0, static_cast<double>(bytes));
    whole_ns_ += static_cast<double>(bytes) / bytes_per_ns_;
    return at_once;
  }

 private:
  double bytes_per_ns_, burst_ns_;
  double whole_ns_;  // when it has its whole burst again
};

}  // namespace tutti::sim
