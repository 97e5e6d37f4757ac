// Random operations on a communicator, whose results are checked. All its ranks draw the same operations. One thread;
// lives as long as its process.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "../perf/buffer.h"
#include "../perf/collective.h"
#include "board.h"
#include "options.h"

namespace tutti::soak {

// A communicator and this rank's place in it.
struct Place {
  tuttiComm_t comm;
  int rank, n_ranks;
};

class Operations {
 public:
  // `doing` receives a text about the current operation.
  Operations(const Options& options, Counts& counts, char (&doing)[kDoingBytes]);
  ~Operations();
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;

  // One step: a call, several in a group or on a stream, or calls on a part of the group. `seed` is the same on all
  // ranks. Wrong results are counted and reported.
  tuttiResult_t step(const Place& place, uint64_t seed);
  // Whether the last step was on a part of the group, whose errors use the part's rank numbers.
  bool in_part() const { return in_part_; }

 private:
  struct Draw;
  std::vector<Draw> draw(const Place& place, std::mt19937_64& random);
  tuttiResult_t run(const Place& place, std::vector<Draw> draws, bool grouped, bool queued);
  tuttiResult_t run_on_part(const Place& place, std::mt19937_64& random);
  tuttiResult_t call_all(const Place& place, std::vector<Draw>& draws, bool grouped, tuttiStream_t stream);
  void say(const Place& place, const char* what, const Draw* draw = nullptr);
  void check(const Place& place, const Draw& draw);
  perf::Call call_of(const Place& place, const Draw& draw, tuttiStream_t stream) const;

  const Options& options_;
  Counts& counts_;
  perf::Buffer send_, recv_;
  tuttiStream_t stream_ = nullptr;
  char (&doing_)[kDoingBytes];
  bool in_part_ = false;
};

}  // namespace tutti::soak
