// Counts how often writes are posted to a device and completions are taken from it, with functions in front of the
// device's own. Linked into a program, or preloaded (LD_PRELOAD), it does so for every device that is opened.
#pragma once

#include <cstdint>

namespace tutti::test {

struct Counters {
  uint64_t posts, completions;
  int inside;          // whether the device's library is running
  int kind;            // what the single-stepping process counts instructions for, from SIGUSR1 on; 0: nothing
  uint64_t from, end;  // another program's posts between which `kind` is 1
};
extern Counters* g_counters;                                  // may be moved elsewhere
inline constexpr const char* kCountersVariable = "COUNTERS";  // descriptor of the memory with a preload's counters

}  // namespace tutti::test
