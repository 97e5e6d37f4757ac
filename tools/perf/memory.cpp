#include "memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "../../lib/base/cgroups.h"
#include "status.h"

namespace tutti::perf {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// kNoLimit if the file says "max", or does not exist.
double number_in(const std::string& path) {
  double value = 0;
  return std::ifstream(path) >> value ? value : kNoLimit;
}

// What the control group of this folder may still use, plus its file pages, which can be freed.
double left_in_group(const std::string& folder) {
  const bool is_version_1 = std::ifstream(folder + "/memory.limit_in_bytes").good();
  const double most = number_in(folder + (is_version_1 ? "/memory.limit_in_bytes" : "/memory.max"));
  const double used = number_in(folder + (is_version_1 ? "/memory.usage_in_bytes" : "/memory.current"));
  if (most == kNoLimit || used == kNoLimit) return kNoLimit;
  const std::string all = is_version_1 ? "total_" : "";
  double left = most - used, bytes = 0;
  std::ifstream stat(folder + "/memory.stat");
  for (std::string key; stat >> key >> bytes;)
    if (key == all + "active_file" || key == all + "inactive_file") left += bytes;
  return std::max(left, 1.0);
}

// For the tightest group that contains this process: containers and Slurm jobs have less memory than their machine.
double left_in_groups(const std::string& root) {
  double least = kNoLimit;
  for (const std::string& folder : cgroup_folders("memory", root)) least = std::min(least, left_in_group(folder));
  return least;
}

}  // namespace

double available_bytes(const std::string& root) {
  std::ifstream in(root + "/proc/meminfo");
  double memory = 0, swap = 0;
  std::string key, unit;
  for (double kib; in >> key >> kib; std::getline(in, unit)) {
    if (key == "MemAvailable:") memory = kib * 1024;
    if (key == "SwapFree:") swap = kib * 1024;
  }
  return std::min(memory, left_in_groups(root)) + swap;
}

double resident_bytes() {
  std::ifstream in("/proc/self/statm");
  double program_pages = 0, resident_pages = 0;
  in >> program_pages >> resident_pages;
  return resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

std::string memory_text(const MemoryMarks& marks) {
  // The kernel may reclaim pages, which must not count as negative use.
  const double initialization = std::max(0.0, marks.joined - marks.start);
  const double buffers = std::max(0.0, marks.allocated - marks.joined);
  const double operations = std::max(0.0, marks.end - marks.allocated);
  return text("# Memory usage         : Initialization %s | User-Allocated %s | Collective %s | Total %s\n",
              human_bytes(initialization).c_str(), human_bytes(buffers).c_str(), human_bytes(operations).c_str(),
              human_bytes(initialization + buffers + operations).c_str());
}

}  // namespace tutti::perf
