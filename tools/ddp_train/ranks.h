// Where the ranks come from.
#pragma once

#include <functional>

#include "options.h"
#include "tutti/tutti.h"

namespace tutti::train {

// A place at the table.
struct RankSetup {
  int rank = 0, size = 1;
  tuttiUniqueId id = {};
  bool from_launcher = false;  // then only the environment says rank, size and id
};

// Runs body(setup), which returns an exit status, in `count` processes, or in as many threads of one. Returns the worst
// status. A process that was killed does not count while another one ends well.
int run_ranks(int count, bool threads, const std::function<int(const RankSetup&)>& body);

}  // namespace tutti::train
