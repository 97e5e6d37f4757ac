// This header: which rank comes late to operations, so that the others wait for it. All of it is worked out from the
// flight recorders' entries, by who asks: an operation pays nothing.
//
// To come last is not to be late: a rank may have been held up in the operation before, by one that was. So a rank is
// late by what it came after the others (their median), but by no more than it has been outside of operations for
// longer than they. Whoever is late by most has held up the others, if that is a millisecond or more.
//
// Clocks of different hosts tell different times. There ranks are compared by when they came before their host left the
// operation, which is at the same time wherever nobody leaves before all have come.
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

// A rank at a collective.
struct Attendance {
  uint64_t sequence = 0;
  bool joins = false;  // nobody leaves it before all have come
  int host = 0;        // which clock has told the times
  int64_t came_ns = 0, left_ns = 0;
  int64_t outside_ns = 0;  // of operations, since the last collective; as far as that is known
};

using Attendances = std::map<int, std::vector<Attendance>>;  // by rank

// The way of a rank through its operations, read piece by piece.
class Way {
 public:
  uint64_t read() const { return read_; }  // so many operations
  // What it has ended since, from a trace of later operations.
  std::vector<Attendance> follow(const Trace& trace);

 private:
  uint64_t read_ = 0;
  int64_t left_ns_ = 0;  // 0: it is not known what was before
  int64_t outside_ns_ = 0;
};

// Who was late for one operation; `late_ns` below kLateNs: nobody.
struct Latecomer {
  static constexpr int64_t kLateNs = 1'000'000;
  int rank = -1;
  int64_t late_ns = 0;
  std::map<int, int64_t> waited_ns;  // the others, for it
};
Latecomer find_latecomer(const std::map<int, Attendance>& ranks);

// The ranks of a group, compared at each operation once all of them are known to have left it.
class RollCall {
 public:
  struct Rank {
    uint64_t operations = 0, late = 0;  // that it was seen at; and was late for
    int64_t late_ns = 0, worst_ns = 0;
    int64_t waited_ns = 0;  // the others, for it
  };
  // What has been compared already is passed over.
  void enter(int rank, const std::vector<Attendance>& ended);
  void enter(const Attendances& ended);
  void compare();
  void compare_all();                              // without waiting for anybody
  uint64_t compared() const { return compared_; }  // up to this operation

  const std::map<int, Rank>& ranks() const { return ranks_; }
  const std::map<std::pair<int, int>, int64_t>& waited_ns() const { return waited_ns_; }  // who, and for whom
  uint64_t latecomers() const;                                                            // to all operations
  // "rank 3 came last to 97 of the last 100 operations that had to wait for somebody, 5.1 ms after the others in the
  // median": of the rank that is late most often; by_most: only if that is more often than all others together.
  std::optional<std::string> sentence(bool by_most = false) const;

 private:
  void compare_first();
  void compare(const std::map<int, Attendance>& ranks);

  std::map<uint64_t, std::map<int, Attendance>> operations_;  // that not all are known to have left
  uint64_t compared_ = 0;
  std::map<int, uint64_t> last_;  // that each has left
  std::map<int, Rank> ranks_;
  std::map<std::pair<int, int>, int64_t> waited_ns_;
  std::deque<std::pair<int, int64_t>> latecomers_;  // the last ones, and by how much
};

// The ranks of this host that have files in the folder of this one's, read again and again.
class Attendants {
 public:
  explicit Attendants(const Recorder& mine) : mine_(mine) {}
  // What they have ended since the last time, and what it has read of this rank's own.
  struct Seen {
    Trace own;
    Attendances ended;
  };
  Seen look();

 private:
  void find();

  struct Attendant {
    TraceFile file;
    Way way;
  };
  const Recorder& mine_;
  std::map<int, Attendant> all_;
  int looks_ = 0;
};

}  // namespace tutti
