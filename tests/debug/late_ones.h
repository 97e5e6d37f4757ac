// Makes a rank late for certain, however busy the machine is.
#pragma once

#include <algorithm>
#include <string>

#include "debug/why.h"

namespace tutti_test {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kLateMs = 20;

// Whether all ranks of the only group except `late` have been in the operation for kLateMs, by their recorders.
inline bool all_others_wait(const std::string& folder, int late, uint64_t sequence) {
  const auto groups = tutti::find_witnesses(folder);
  const tutti::Witnesses& ranks = groups.begin()->second;
  return std::all_of(ranks.begin(), ranks.end(), [&](const auto& entry) {
    const tutti::Trace& trace = entry.second.trace;
    return entry.first == late || (trace.is_in_operation() && trace.last()->call.sequence == sequence &&
                                   trace.read_ns - trace.last()->started_ns >= kLateMs * kMs);
  });
}

}  // namespace tutti_test
