// This header: runs the schedules of all ranks as discrete events on a network. Deterministic: the same values in give
// the same values out, on every machine. One thread, and nothing stays behind.
#pragma once

#include <functional>
#include <optional>

#include "schedule/alike.h"
#include "tools/sim/network.h"

namespace tutti::sim {

// One operation. `schedule` is called once for each rank.
struct Job {
  std::function<Schedule(int rank)> schedule;
  uint64_t block_elems = 0;  // of every block; see schedule.h
  size_t elem_bytes = 4;
  int rank_blocks = 2;  // blocks in a rank's input and output together
  bool traces = false;
  int row = 1;  // number of operations, one after the other
  // The ranks that a rank tells of a death, and that tell it.
  std::function<std::vector<int>(int rank)> neighbours = {};
  uint64_t most_steps = UINT64_MAX;  // more are refused with kInvalidUsage, as are jobs that do not fit in memory
  // Says that schedules and network repeat those of the first ranks: then only these are simulated, each for all ranks
  // like it. If blocks do not divide evenly into chunks, the others are taken to have the first ones' chunks.
  std::optional<Symmetry> alike;
};

struct Span {
  enum Kind { kWaits, kWorks, kMessage };
  Kind kind = kWaits;
  int rank = 0, lane = 0;
  int peer = -1;  // the message's receiver, or the rank that is waited for; -1: several
  uint64_t bytes = 0;
  double begin_ns = 0, end_ns = 0;
};

struct Outcome {
  double ns = 0;                     // from the first rank's start to the last one's end, or error; in a row, what
                                     // each operation after the first one adds
  std::vector<double> ends_ns;       // by rank
  uint64_t messages = 0, bytes = 0;  // sent by all ranks
  uint64_t events = 0;
  int failed = 0;                    // surviving ranks that were told of a death before they were done
  std::vector<uint64_t> wire_bytes;  // in the order of Network::wires()
  std::vector<Span> spans;           // if the job traces
};

// kInternalError: the schedules do not fit together, or some rank waits for ever; the message names one.
Result<Outcome> run(const Network& network, const Job& job);

}  // namespace tutti::sim
