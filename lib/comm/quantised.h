// This header: all-reduces in quantised blocks. Rank r of n sums blocks [r * B / n, (r + 1) * B / n) of all B, and
// hands the sums to everybody. Belongs to the thread whose turn it is.
#pragma once

#include <atomic>
#include <vector>

#include "comm/collectives.h"
#include "comm/messages.h"

namespace tutti {

class QuantisedSums {
 public:
  QuantisedSums(const Membership& me, Monitor& monitor, Collectives& collectives, Messages& messages)
      : me_(me), monitor_(monitor), collectives_(collectives), messages_(messages) {}
  Result<void> run(const Operation& operation);
  size_t scratch_bytes() const { return scratch_bytes_; }  // any thread

 private:
  const Membership& me_;
  Monitor& monitor_;
  Collectives& collectives_;
  Messages& messages_;
  bool has_agreed_ = false;               // whether all ranks have agreed that they quantise
  std::vector<char> quantised_, others_;  // kept for the next operation
  std::atomic<size_t> scratch_bytes_{0};  // of both
};

}  // namespace tutti
