// A schedule as text, to compare.
#pragma once

#include <string>

#include "schedule/schedule.h"

namespace tutti::testing {

// A table of one rank's steps: "lane 0 step 3: recv 1 + in[2] -> out[2], send 3".
inline std::string to_text(const Schedule& schedule) {
  std::string text = format("rank %d of %d: %u chunks, %u scratch, %zu lanes\n", schedule.rank, schedule.n_ranks,
                            schedule.n_chunks, schedule.n_scratch, schedule.lanes.size());
  for (size_t l = 0; l < schedule.lanes.size(); l++) {
    const Lane& lane = schedule.lanes[l];
    text += format("lane %zu: channel %u, %zu steps\n", l, lane.channel, lane.steps.size());
    for (auto at = lane.steps.begin(); at != lane.steps.end(); ++at)
      text += format("lane %zu step %u: ", l, at.index()) + step_text(*at) + "\n";
  }
  return text;
}

}  // namespace tutti::testing
