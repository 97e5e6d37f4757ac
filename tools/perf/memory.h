// How much memory is left, and how much this process holds.
#pragma once

#include <string>

namespace tutti::perf {

// Memory and swap that this machine, or the container that this process is in, can still give; 0 if it does not say.
// `root` is for tests: what stands before /proc and /sys.
double available_bytes(const std::string& root = "");
// Pages of this process that are in memory, shared ones included.
double resident_bytes();

// What a process came to hold on its way: resident_bytes() at four moments.
struct MemoryMarks {
  double start = 0, joined = 0, allocated = 0, end = 0;
};
// One line of the report (-M).
std::string memory_text(const MemoryMarks& marks);

}  // namespace tutti::perf
