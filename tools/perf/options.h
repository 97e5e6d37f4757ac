// The command line: nccl-tests' flags, and Tutti's own.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "collective.h"
#include "status.h"

namespace tutti::perf {

inline constexpr int kAllRoots = -1;
// Values of Options::device: host memory, or for each rank the device with its number.
inline constexpr int kHostMemory = -1, kEachItsDevice = -2;

struct Options {
  size_t min_bytes = 32 << 20, max_bytes = 32 << 20, step_bytes = 1 << 20, step_factor = 1;
  int iters = 20, warmup_iters = 1, agg_iters = 1, run_cycles = 1, check_iters = 1;
  std::vector<tuttiDataType_t> types = {tuttiFloat32};
  std::vector<tuttiRedOp_t> ops = {tuttiSum};
  tuttiDataType_t wire = tuttiInt8;  // for quantised collectives
  int root = 0;
  int threads = 1, procs = 0;  // procs 0: no ranks are forked
  int blocking = 0;
  int device = kHostMemory;
  int graph_launches = 0;  // 0: operations are started individually
  bool null_stream = true;
  int timeout_seconds = 0;  // 0: the library's own limit
  bool cpu_time = false, timestamps = false, per_iter_timing = false, parallel_init = false;
  int per_iter_skip = 0;
  int average = 1;
  int registration = 0;  // 0: the C library's memory; 1, 2: tuttiMemAlloc's, registered
  bool memory_report = false, explain = false, first = false;
  size_t unalign_elems = 0;
  int grace_seconds = 30;
  std::string json_path, algo, transports, sizes_from;

  std::vector<std::string> args;  // as given, for the report
  std::string help;               // if not empty: print this and end
};

Status parse_options(int argc, const char* const* argv, const Collective& collective, Options* options);

// "8", "4K", "1.5M", "2G" (powers of 1024).
Status parse_size(const std::string& text, const char* option, size_t* bytes);

// Advances *size, which starts at min_bytes, to the next size to run; false at the end. After 0 comes one element.
bool next_size(const Options& options, size_t elem_bytes, size_t* size);

}  // namespace tutti::perf
