// The limits that containers and jobs put on this process. Header only, with nothing of Tutti: tools use it, too.
#pragma once

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace tutti {

// The folders of all control groups, of either version, that contain this process and may limit it ("cpu", "memory"),
// and of the groups around them: a container may see its own group as the outermost one. `root` is for tests: a prefix
// of /proc and /sys.
inline std::vector<std::string> cgroup_folders(const std::string& controller, const std::string& root = "") {
  std::vector<std::string> folders;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/user.slice", "4:cpu,cpuacct:/docker/1f"
    const size_t name = line.find(':') + 1, path = line.find(':', name) + 1;
    const std::string controllers = line.substr(name, path - name - 1);
    if (!controllers.empty() && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    for (std::string group = line.substr(path);; group.resize(group.rfind('/'))) {
      folders.push_back(root + "/sys/fs/cgroup/" + controllers + group);
      if (group.find('/') == std::string::npos) break;
    }
  }
  return folders;
}

// How many CPUs' worth of time the tightest of these groups may use; 0: there is no limit.
inline double cpu_quota(const std::string& root = "") {
  double least = 0;
  for (const std::string& folder : cgroup_folders("cpu", root)) {
    double most = 0, period = 0;              // microseconds
    std::ifstream both(folder + "/cpu.max");  // "max 100000" without a limit
    if (!(both >> most >> period)) {
      std::ifstream(folder + "/cpu.cfs_quota_us") >> most;  // -1 without a limit
      std::ifstream(folder + "/cpu.cfs_period_us") >> period;
    }
    if (most > 0 && period > 0) least = least == 0 ? most / period : std::min(least, most / period);
  }
  return least;
}

}  // namespace tutti
