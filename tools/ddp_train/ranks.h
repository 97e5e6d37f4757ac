// Where the ranks come from.
#pragma once

#include <functional>

#include "options.h"
#include "tutti/tutti.h"

namespace tutti::train {

// A rank's place in the group.
struct RankSetup {
  int rank = 0, size = 1;
  tuttiUniqueId id = {};
  bool from_launcher = false;  // then only the environment has rank, size and id
};

// Runs body(setup), which returns an exit status, in `count` processes, or in that many threads of one. Returns the
// worst status. A killed process does not count if another one ends well.
int run_ranks(int count, bool threads, const std::function<int(const RankSetup&)>& body);

}  // namespace tutti::train
