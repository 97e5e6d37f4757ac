// What ddp_train is asked to do.
#pragma once

#include <cstdint>
#include <string>

#include "../perf/status.h"

namespace tutti::train {

using perf::Error;
using perf::Status;
using perf::text;

constexpr int kWarmUpSteps = 3;  // not timed

struct Options {
  int procs = -1;  // 0: the launcher's processes; -1: those if there is a launcher, else 2
  bool threads = false;

  std::string data;  // empty: the system's licence texts
  int context = 16, embedding = 24, hidden = 384, layers = 3;
  uint64_t seed = 1;

  int steps = 200, batch = 128, accumulate = 1;
  float learning_rate = 0.05f, momentum = 0.9f;

  bool bfloat16 = false;
  std::string compress = "none";
  bool error_feedback = false;
  float loss_scale = 0;  // 0: no scaling
  size_t first_bucket_bytes = 1 << 20, bucket_bytes = 25 << 20;
  bool no_overlap = false;
  int check_every = 0;

  std::string checkpoint;
  int checkpoint_every = 0;
  bool resume = false;

  int log_every = 10;
  std::string json;
  int die_rank = -1, die_step = -1;
  bool scaling = false;

  std::string help;  // printed instead of training, if not empty
};

Status parse_options(int argc, char** argv, Options* options);

}  // namespace tutti::train
