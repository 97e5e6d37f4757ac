// This header: what ranks on other hosts are doing, which shared memory does not show. A rank that waits long asks all
// ranks over the control connections, once a second; each answers with its place in the order of operations, which
// ranks it waits for, and which ranks of its host are stopped, since those cannot answer. A rank that stays silent
// while its host is alive is not running.
//
// Threading: any thread.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "comm/gossip.h"
#include "debug/recorder.h"
#include "debug/why.h"
#include "group/peers.h"

namespace tutti {

class Inquiry {
 public:
  Inquiry(int rank, int n_ranks, const Recorder& recorder) : recorder_(recorder), gossip_(rank, n_ranks) {}

  // Whether a rank that has waited this long should look for the cause again, and ask.
  bool is_due(int64_t idle_ns);
  // What to ask the other ranks; empty if a rank has just asked.
  std::string question();
  std::optional<PeerWatch::Answer> hear(std::string_view bytes);

  // The ranks that can be seen on this host.
  Witnesses seen() const;
  // And what the others have answered since they were asked. `names` gives "rank 3 (host node1, pid 77)".
  Witnesses all(const PeerWatch& names) const;

 private:
  int64_t every_ns() const { return gossip_.pause_ns(1'000'000'000); }
  bool sees_all() const;  // through shared memory: then no rank is asked
  void take_asked(int64_t now);
  std::string account();
  bool hear_account(ByteReader reader);

  const Recorder& recorder_;
  mutable std::mutex mutex_;  // guards the members below
  Gossip gossip_;
  Witnesses said_;  // answers, by rank: 320 bytes each
  int64_t looked_ns_ = 0, answered_ns_ = 0;
  int64_t asked_ns_ = 0, asked_first_ns_ = 0;  // by any rank: last; first of an unbroken series
};

}  // namespace tutti
