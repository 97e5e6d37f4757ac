// This header: one sentence for a job that hangs: who waits for whom, and which rank is the cause. A pure function of
// what is known about the ranks. From outside a process, ranks of other hosts cannot be seen: then the sentence is what
// a rank here has found out by asking them (Trace::Wait::found).
#pragma once

#include <map>
#include <string>

#include "debug/trace.h"

namespace tutti {

struct Witness {
  Trace trace;
  char process_state = '?';  // from process_state()
  std::string elsewhere;     // the operation that its process is in with another group
  bool is_remote = false;    // it has told this itself, or another rank of its host has
  std::string silent;        // "rank 3 (host node1, pid 77) has not answered for 4.2 s", if that is all that is known
};

// The ranks of one group, by rank.
using Witnesses = std::map<int, Witness>;

// The ranks with files in the folder, by group. With only some of their last operations, which is all that why() needs
// and fast if there are many files; or with all that are known.
std::map<uint64_t, Witnesses> find_witnesses(const std::string& folder, bool with_all_operations = false);

// From `asked`'s point of view; -1: from that of the rank that has waited longest.
std::string why(const Witnesses& witnesses, int asked = -1);

// "in AllReduce(...) as operation 7, for 4.2 s", "after operation 6, 4.2 s ago".
std::string place_in_order(const Trace& trace);

}  // namespace tutti
