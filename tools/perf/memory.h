// How much memory is left, and how much this process holds.
#pragma once

#include <string>

namespace tutti::perf {

// Memory and swap that are still available on this machine, or to the container of this process; 0 if unknown.
// `root` is for tests: a prefix of /proc and /sys.
double available_bytes(const std::string& root = "");
// Pages of this process that are in memory, shared ones included.
double resident_bytes();

// The memory that a process holds at four moments, by resident_bytes().
struct MemoryMarks {
  double start = 0, joined = 0, allocated = 0, end = 0;
};
// One line of the report (-M).
std::string memory_text(const MemoryMarks& marks);

}  // namespace tutti::perf
