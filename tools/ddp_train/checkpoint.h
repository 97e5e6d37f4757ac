// A training run on disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model.h"
#include "options.h"

namespace tutti::train {

// What a run needs to continue, besides the weights.
struct Progress {
  int64_t step = 0;
  int64_t samples = 0;  // seen by all ranks together
  float loss_scale = 0;
  int32_t good_steps = 0;  // since the last change of the loss scale
};

// What save_checkpoint writes to: a file that then replaces the other; but pipes and devices cannot be replaced.
std::string written_first(const std::string& path);

// Replaces the file atomically: after a crash or on a full disk the old one is still there.
Status save_checkpoint(const std::string& path, const Progress& progress, const std::vector<Weight>& weights);

// If there is no file nothing changes, and *found is false.
Status load_checkpoint(const std::string& path, Progress* progress, std::vector<Weight>* weights, bool* found);

}  // namespace tutti::train
