#include "census.h"

#include <dirent.h>
#include <unistd.h>

#include <fstream>

#include "../perf/status.h"

namespace tutti::soak {
namespace {

// Mappings that the C library keeps for heaps and stacks of threads that have ended.
constexpr int kMappingsToKeep = 200;

int entries_of(const char* folder) {
  int n = 0;
  DIR* const entries = opendir(folder);
  if (entries == nullptr) return 0;
  while (const dirent* entry = readdir(entries)) n += entry->d_name[0] != '.';
  closedir(entries);
  return n;
}

}  // namespace

Census Census::take() {
  Census found;
  found.descriptors = entries_of("/proc/self/fd");
  found.threads = entries_of("/proc/self/task");
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line); found.mappings++)
    if (const size_t mode = line.find(' '); mode + 4 < line.size() && line[mode + 4] == 's') found.shared_mappings++;
  std::ifstream children("/proc/self/task/" + std::to_string(getpid()) + "/children");
  for (int pid; children >> pid;) found.children++;
  return found;
}

std::string Census::more_than(const Census& before) const {
  std::string text;
  const auto compare = [&](const char* what, int now, int then, int allowed) {
    if (now > then + allowed) text += perf::text("%s%s: %d instead of %d", text.empty() ? "" : ", ", what, now, then);
  };
  compare("descriptors", descriptors, before.descriptors, 0);
  compare("threads", threads, before.threads, 0);
  compare("shared mappings", shared_mappings, before.shared_mappings, 0);
  compare("mappings", mappings, before.mappings, kMappingsToKeep);
  compare("child processes", children, before.children, 0);
  return text;
}

}  // namespace tutti::soak
