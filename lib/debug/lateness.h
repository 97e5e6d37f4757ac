// This header: which rank comes late to operations, so that the others wait for it. All of it is computed from the
// flight recorders' entries, by whoever asks, so operations pay nothing.
//
// The last rank is not always a late one: it may have been held up in the operation before by one that was late. So a
// rank's lateness is the time by which it came after the others' median, but no more than it has been outside of
// operations for longer than their median. The rank with the greatest lateness has held up the others, if that is a
// millisecond or more.
//
// Clocks of different hosts show different times. So ranks of several hosts are compared by how long they came before
// their host left the operation, which all hosts do at the same time if nobody leaves before all have come.
//
// Values; none is for several threads at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "debug/trace.h"

namespace tutti {

// One rank's part in a collective.
struct Attendance {
  uint64_t sequence = 0;
  bool joins = false;  // nobody leaves it before all have come
  int host = 0;        // whose clock the times are from
  int64_t came_ns = 0, left_ns = 0;
  int64_t outside_ns = 0;  // time outside of operations since the last collective, as far as known
};

using Attendances = std::map<int, std::vector<Attendance>>;  // by rank

// Reads a rank's attendance from its trace, piece by piece.
class AttendanceReader {
 public:
  uint64_t read() const { return read_; }  // number of the last operation read
  // The collectives that it has ended since, from a trace of later operations.
  std::vector<Attendance> follow(const Trace& trace);

 private:
  uint64_t read_ = 0;
  int64_t left_ns_ = 0;  // when it left the operation before; 0: unknown
  int64_t outside_ns_ = 0;
};

// The rank that was late for one operation; -1: nobody was late by kLateNs or more.
struct Straggler {
  static constexpr int64_t kLateNs = 1'000'000;
  int rank = -1;
  int64_t late_ns = 0;
  std::map<int, int64_t> waited_ns;  // by rank: how long it waited for the late one
};
Straggler find_straggler(const std::map<int, Attendance>& ranks);

// The ranks of a group, compared at each operation once all of them are known to have left it.
class StragglerDetector {
 public:
  struct Rank {
    uint64_t operations = 0, late = 0;  // number it was seen at; number it was late for
    int64_t late_ns = 0, worst_ns = 0;
    int64_t waited_ns = 0;  // time that the others waited for it
  };
  // Ignores operations that have been compared already.
  void enter(int rank, const std::vector<Attendance>& ended);
  void enter(const Attendances& ended);
  void compare();
  void compare_all();                              // even operations that some rank may not have left
  uint64_t compared() const { return compared_; }  // the last operation compared

  const std::map<int, Rank>& ranks() const { return ranks_; }
  // By who waited, and for whom; empty for more than 256 ranks.
  const std::map<std::pair<int, int>, int64_t>& waited_ns() const { return waited_ns_; }
  uint64_t stragglers() const;  // in all operations
  // "rank 3 came last to 97 of the last 100 operations that had to wait for somebody, 5.1 ms after the others in the
  // median": about the rank that is late most often; by_most: only if more often than all others together.
  std::optional<std::string> sentence(bool by_most = false) const;

 private:
  void compare_first();
  void compare(const std::map<int, Attendance>& ranks);

  std::map<uint64_t, std::map<int, Attendance>> operations_;  // not compared yet
  uint64_t compared_ = 0;
  std::map<int, uint64_t> last_;  // by rank: the last operation that it has left
  std::map<int, Rank> ranks_;
  std::map<std::pair<int, int>, int64_t> waited_ns_;
  std::deque<std::pair<int, int64_t>> stragglers_;  // the last ones: rank, nanoseconds
};

// The ranks of this host with files in the folder of this rank's file, read again and again.
class Attendants {
 public:
  explicit Attendants(const Recorder& mine) : mine_(mine) {}
  // The collectives they have ended since the last look, and this rank's own trace as read for that.
  struct Seen {
    Trace own;
    Attendances ended;
  };
  Seen look();

 private:
  void find();

  struct Attendant {
    TraceFile file;
    AttendanceReader reader;
  };
  const Recorder& mine_;
  std::map<int, Attendant> all_;
  int looks_ = 0;
};

}  // namespace tutti
