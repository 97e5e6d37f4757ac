// This header: what a communicator tells a monitoring system, as a file in Prometheus' text format, which is written
// every 5 s, when the communicator has been finalized, when it breaks and when it ends; and in the log, at info, which
// rank is late again and again. A separate thread reads this rank's recorder ten times a second, and on the first rank
// of each host those of all ranks there; once a second it asks the other hosts for theirs. Operations pay nothing for
// it. Above 10,000 operations a second some entries are overwritten before they are read: then the rest serves as a
// sample, and the overwritten ones count as if they were like it, except that no rank was late for them.
//
// Threading: write() from any thread.
#pragma once

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "comm/link_pool.h"
#include "comm/remote_attendants.h"
#include "debug/lateness.h"
#include "debug/recorder.h"
#include "group/peers.h"

namespace tutti {

// A rank's operations and their bytes.
struct OperationTotals {
  struct Total {
    uint64_t operations = 0, bytes = 0;
  };
  std::array<Total, kCollectives> by_collective{};
  uint64_t counted = 0;  // operations, of all kinds

  // Adds the operations begun since the last call. Overwritten ones are taken to be like those that are still there.
  void count(const Trace& trace);
};

// Compares the ranks of this host with each other and with those of other hosts; logs which rank is late again and
// again.
class LatenessWatch {
 public:
  LatenessWatch(const Recorder& recorder, PeerWatch& watch, RemoteAttendants& others)
      : watch_(watch), others_(others), attendants_(recorder) {}
  Trace look();  // looks at this host; returns this rank's own trace
  void look_elsewhere();

  StragglerDetector roll;

 private:
  void tell_of_stragglers();

  PeerWatch& watch_;
  RemoteAttendants& others_;
  Attendants attendants_;
  uint64_t told_stragglers_ = 0;
  int64_t told_ns_ = 0, asked_ns_ = 0;
};

class Metrics {
 public:
  // `pattern`: TUTTI_METRICS_FILE. Null if neither file nor log is wanted, or no thread can be started, which is
  // logged. All arguments outlive it.
  // `others`: with whose ranks this host's are compared; null if another rank of this host does that.
  static std::unique_ptr<Metrics> start(const Recorder& recorder, PeerWatch& watch, const LinkPool& links,
                                        const std::string& pattern, RemoteAttendants* others);
  ~Metrics();
  // Writes the file now. The first failure is logged.
  void write();

 private:
  Metrics(const Recorder& recorder, PeerWatch& watch, const LinkPool& links)
      : recorder_(recorder), watch_(watch), links_(links) {}
  // With mutex_ held.
  void serve();
  void look();
  void write_now();
  std::string text() const;

  const Recorder& recorder_;
  PeerWatch& watch_;
  const LinkPool& links_;
  std::string path_;  // empty: nothing is written
  std::mutex mutex_;  // guards the members below
  OperationTotals totals_;
  std::optional<LatenessWatch> lateness_;
  int64_t written_ns_ = now_ns();
  bool has_warned_ = false, stopping_ = false;
  std::condition_variable stops_;
  std::thread thread_;
};

}  // namespace tutti
