// This header: runs the schedules of all ranks as discrete events on a network. Deterministic: the same values in give
// the same values out, on every machine. One thread, and nothing stays behind.
#pragma once

#include <functional>
#include <optional>

#include "schedule/alike.h"
#include "sim/network.h"

namespace tutti::sim {

// One operation. `schedule` is asked once for each rank.
struct Job {
  std::function<Schedule(int rank)> schedule;
  uint64_t block_elems = 0;  // of every block; see schedule.h
  size_t elem_bytes = 4;
  int rank_blocks = 2;  // of them, a rank's input and output
  bool traces = false;
  int row = 1;  // operations, one after the other
  // Whom a rank is told by, and tells, that one has died.
  std::function<std::vector<int>(int rank)> neighbours = {};
  uint64_t most_steps = UINT64_MAX;  // simulated: more are refused with kInvalidUsage, as is what has no room in memory
  // The schedules, and the network, are those of the first ranks, moved: then only these are simulated, each for all
  // that are like it. If blocks do not divide evenly into chunks, that is as if the others had the first ones' chunks.
  std::optional<Symmetry> alike;
};

struct Span {
  enum Kind { kWaits, kWorks, kMessage };
  Kind kind = kWaits;
  int rank = 0, lane = 0;
  int peer = -1;  // the message's receiver, or whom the rank waits for; -1: several
  uint64_t bytes = 0;
  double begin_ns = 0, end_ns = 0;
};

struct Outcome {
  double ns = 0;                     // from the first rank's start to the last one's end, or error; in a row, what
                                     // each operation after the first one adds
  std::vector<double> ends_ns;       // by rank
  uint64_t messages = 0, bytes = 0;  // sent by all ranks
  uint64_t events = 0;
  int failed = 0;                    // ranks that live, and were told of a death before they were done
  std::vector<uint64_t> wire_bytes;  // as Network::wires()
  std::vector<Span> spans;           // if the job traces
};

// kInternalError: the schedules do not fit together, or some rank waits for ever; it names one.
Result<Outcome> run(const Network& network, const Job& job);

}  // namespace tutti::sim
