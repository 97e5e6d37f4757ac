// The proof of all-reduces among very many ranks, in place and not: at_scale [RANKS [ALGORITHM]], by default 4096 ranks
// and all five algorithms without a limit. Prints the time of each and the peak memory so far; fails if one is wrong.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <numeric>
#include <vector>

#include "schedule/algorithms.h"

using namespace tutti;

namespace {

constexpr int kRanksPerHost = 8;

struct Group {
  std::vector<int> order;
  std::vector<std::vector<int>> hosts;
};

Group group_of(int n) {
  Group group;
  group.order.resize(static_cast<size_t>(n));
  std::iota(group.order.begin(), group.order.end(), 0);
  for (const int rank : group.order) {
    if (rank % kRanksPerHost == 0) group.hosts.emplace_back();
    group.hosts.back().push_back(rank);
  }
  return group;
}

// With the largest number of lanes that the library uses.
struct Named {
  const char* name;
  uint32_t lanes;
};
constexpr Named kAlgorithms[] = {{"ring", 2},     {"tree", 2},  {"circulant", 1},
                                 {"doubling", 1}, {"chain", 1}, {"hierarchical", 2}};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

bool prove(const Named& algorithm, const Group& group, bool in_place) {
  const double began = cpu_seconds();
  std::vector<Schedule> schedules;
  const Method& method = algorithm_of(algo_named(algorithm.name))->all_reduce;
  for (const int rank : group.order)
    schedules.push_back(method.build({group.order, group.hosts, {}, {}, rank, 0, algorithm.lanes}));
  const double built = cpu_seconds();
  const auto checked = check(schedules, {.in_place = in_place});
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  printf("%-13s%-9s %8.2f %8.2f %8.0f  %s\n", algorithm.name, in_place ? "in place" : "", built - began,
         cpu_seconds() - built, static_cast<double>(usage.ru_maxrss) / 1024,
         checked ? "right" : checked.error().message.c_str());
  fflush(stdout);
  return static_cast<bool>(checked);
}

}  // namespace

int main(int argc, char** argv) {
  const int n = argc > 1 ? atoi(argv[1]) : 4096;
  if (n < 1) return fprintf(stderr, "usage: at_scale [RANKS [ALGORITHM]]\n"), 2;
  const Group group = group_of(n);
  printf("# %d ranks, %d on each host\n# algorithm             built    proved   memory\n", n, kRanksPerHost);
  printf("#                     (CPU s)  (CPU s)    (MiB)\n");
  bool right = true;
  for (const Named& algorithm : kAlgorithms)
    for (const bool in_place : {false, true})
      if (argc < 3 || strcmp(argv[2], algorithm.name) == 0) right &= prove(algorithm, group, in_place);
  return right ? 0 : 1;
}
