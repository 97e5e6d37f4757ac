// Counts how often writes are posted to a device and completions taken from it, by functions in front of the device's
// own. Linked into a program, or loaded before it (LD_PRELOAD), it does so for every device that is opened.
#pragma once

#include <cstdint>

namespace tutti::test {

struct Counters {
  uint64_t posts, completions;
  int inside;          // whether the device's library is at work
  int kind;            // what who single-steps the process counts instructions for, from SIGUSR1 on; 0: nothing
  uint64_t from, end;  // the posts of a program that is not ours between which that is 1
};
extern Counters* g_counters;                                  // may be put elsewhere
inline constexpr const char* kCountersVariable = "COUNTERS";  // a descriptor of memory where a preload has them

}  // namespace tutti::test
