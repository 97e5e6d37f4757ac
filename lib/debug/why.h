// This header: one sentence for a job that hangs: who waits for whom, and which rank is the cause. A pure function of
// what is known of the ranks. From outside a process those of other hosts cannot be seen: then it is what a rank here
// has found out by asking them (Trace::Wait::found).
#pragma once

#include <map>
#include <string>

#include "debug/trace.h"

namespace tutti {

struct Witness {
  Trace trace;
  char process_state = '?';  // as process_state() has it
  std::string elsewhere;     // what its process is in with another group
  bool is_remote = false;    // it has told this itself, or another rank of its host has
  std::string silent;        // "rank 3 (host node1, pid 77) has not answered for 4.2 s", if that is all there is
};

// Of one group, by rank.
using Witnesses = std::map<int, Witness>;

// Those that have left files in the folder, by group. With some of their last operations only, which is all that why()
// wants and fast where there are many files; or with all that are known.
std::map<uint64_t, Witnesses> find_witnesses(const std::string& folder, bool with_all_operations = false);

// From `asked`'s point of view; -1: from that of the rank that has waited longest.
std::string why(const Witnesses& witnesses, int asked = -1);

// "in AllReduce(...) as operation 7, for 4.2 s", "after operation 6, 4.2 s ago".
std::string place_in_order(const Trace& trace);

}  // namespace tutti
