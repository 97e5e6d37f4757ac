// What the flight recorder costs an operation: rounds with it and without it in turn. A benchmark, not a test.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "debug/recorder.h"

using namespace tutti;  // NOLINT

int main() {
  constexpr int kRounds = 15, kOperations = 200'000;
  Recorder recorder;
  recorder.share(0, 1, 1);
  const TagWords call =
      to_tag({.sequence = 1, .count = 2, .collective = Collective::kAllReduce, .dtype = DataType::kFloat32});
  std::vector<double> on, off;
  uint64_t sink = 0;
  for (int round = 0; round < kRounds; round++) {
    for (const bool records : {false, true}) {
      const int64_t begun = now_ns();
      for (uint64_t i = 1; i <= kOperations; i++) {
        if (records) recorder.begin(call, i, &sink);
        asm volatile("" ::: "memory");  // the operation
        if (records) recorder.end();
      }
      (records ? on : off).push_back(static_cast<double>(now_ns() - begun) / kOperations);
    }
  }
  std::sort(on.begin(), on.end());
  std::sort(off.begin(), off.end());
  printf("%.2f ns for an operation (median of %d rounds; the loop alone %.2f ns), in %s\n", on[kRounds / 2], kRounds,
         off[kRounds / 2], recorder.path().empty() ? "private memory" : "shared memory");
  return 0;
}
