#include "memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "status.h"

namespace tutti::perf {

double available_bytes() {
  std::ifstream in("/proc/meminfo");
  double sum = 0;
  std::string key, unit;
  for (double kib; in >> key >> kib; std::getline(in, unit)) {
    if (key == "MemAvailable:" || key == "SwapFree:") sum += kib * 1024;
  }
  return sum;
}

double resident_bytes() {
  std::ifstream in("/proc/self/statm");
  double program_pages = 0, resident_pages = 0;
  in >> program_pages >> resident_pages;
  return resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

std::string memory_text(const MemoryMarks& marks) {
  // The kernel may take pages back, which is no negative use.
  const double initialization = std::max(0.0, marks.joined - marks.start);
  const double buffers = std::max(0.0, marks.allocated - marks.joined);
  const double operations = std::max(0.0, marks.end - marks.allocated);
  return text("# Memory usage         : Initialization %s | User-Allocated %s | Collective %s | Total %s\n",
              human_bytes(initialization).c_str(), human_bytes(buffers).c_str(), human_bytes(operations).c_str(),
              human_bytes(initialization + buffers + operations).c_str());
}

}  // namespace tutti::perf
