// This header: what ranks are in that cannot be seen through shared memory, because they are on other hosts. A rank
// that waits for long asks all ranks over the control connections, once a second; each says where it is in its order,
// whom it waits for, and which ranks of its host are stopped, since those cannot. Whoever says nothing while its host
// is there does not run.
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

  // Whether who has waited for so long should look again who is the cause, and ask.
  bool is_due(int64_t idle_ns);
  // For the other ranks; empty where somebody has just asked.
  std::string question();
  std::optional<PeerWatch::Answer> hear(std::string_view bytes);

  // Those that this host shows.
  Witnesses seen() const;
  // And what the others have said since they were asked. `names`: "rank 3 (host node1, pid 77)".
  Witnesses all(const PeerWatch& names) const;

 private:
  int64_t every_ns() const { return gossip_.pause_ns(1'000'000'000); }
  bool sees_all() const;
  void take_asked(int64_t now);
  std::string account();
  bool hear_account(ByteReader reader);

  const Recorder& recorder_;
  mutable std::mutex mutex_;  // what follows
  Gossip gossip_;
  Witnesses said_;                // by rank: one is 320 bytes
  std::optional<bool> sees_all_;  // through shared memory: nobody has to be asked
  int64_t looked_ns_ = 0, answered_ns_ = 0;
  int64_t asked_ns_ = 0, asked_first_ns_ = 0;  // by anybody: last; and before that without a long pause
};

}  // namespace tutti
