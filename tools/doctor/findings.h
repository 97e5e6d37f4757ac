// What the doctor finds, line by line.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tutti/tutti.h"

namespace tutti::doctor {

struct Finding {
  enum class Level : char { kGood = ' ', kWarning = '!', kBad = 'X' };
  Level level;
  std::string what, found, remedy;  // no remedy if it is good
};
using Findings = std::vector<Finding>;

// A bit set of CPU numbers, for the most CPUs that Linux on x86 supports.
using Cpus = std::array<uint64_t, 128>;
Cpus cpus_of_process();

// This process and its host, for that many ranks on it, which together may use these CPUs, and that many in all.
Findings look_at_host(int ranks_here, int n_ranks, const Cpus& cpus_here);

// What RDMA needs if the folder `devices`, /sys/class/infiniband, has any; `plugin` is where the library looks for
// verbs.
Findings look_at_rdma(const std::filesystem::path& devices, const std::filesystem::path& plugin);

// What differs among the settings of a group's ranks, given as lines NAME=value. That is allowed: ranks whose versions
// differ, or variables that must be equal, form no group.
Finding compare_settings(const std::vector<std::string>& settings);

// Sums and messages over each of the library's transports between two ranks of this process, compared with the right
// results.
Findings try_transports();

// A rank of the job. Collective.
struct Place {
  int n_hosts = 0, ranks_here = 0;
  bool is_first_here = false;
  Cpus cpus_here = cpus_of_process();  // CPUs that any rank of this host may use
};
Place find_place(tuttiComm_t comm);

// The network between the job's hosts. Collective; all ranks find the same.
Findings look_at_network(tuttiComm_t comm);

// Data between all ranks of the job, over whichever transport connects them; and whether all have the same version and
// settings. Collective; all ranks have the same findings, except for times.
Findings look_at_group(tuttiComm_t comm, int n_hosts);

// The first error; "" if there was none.
class Trouble {
 public:
  bool take(tuttiResult_t result) {
    if (result != tuttiSuccess && text_.empty()) text_ = tuttiGetLastError(nullptr);
    return result == tuttiSuccess;
  }
  void say(std::string text) {
    if (text_.empty()) text_ = std::move(text);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Concatenates the values of all ranks, which have equally many.
template <class T>
std::vector<T> gather(tuttiComm_t comm, int n_ranks, const std::vector<T>& mine, Trouble* trouble) {
  std::vector<T> all(mine.size() * static_cast<size_t>(n_ranks));
  trouble->take(tuttiAllGather(mine.data(), all.data(), mine.size() * sizeof(T), tuttiUint8, comm, nullptr));
  return all;
}

}  // namespace tutti::doctor
