// Counts how often writes are posted to a device and completions taken from it, by functions in front of the device's
// own. Linked into a program, or loaded before it (LD_PRELOAD), it does so for every device that is opened.
#pragma once

#include <cstdint>

namespace tutti::test {

struct Counters {
  uint64_t posts, completions;
  int inside;  // whether the device's library is at work
};
extern Counters* g_counters;  // may be put elsewhere

}  // namespace tutti::test
