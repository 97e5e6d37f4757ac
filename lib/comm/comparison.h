// This header: what ranks tell each other of their calls over the control connections, where messages cannot. These
// carry a hash of unequal blocks, so whoever meets another one knows its own sizes only and asks all ranks: "I had
// these, who had others?". The first one that had ends the group with both. And who has waited for long tells its
// neighbours in which operation; who waits for messages tells all ranks, since anybody may be in the way. Who has heard
// that, and is in the way, ends the group with both calls; see standing.h.
//
// Threading: any thread, but look() and check() on that of the operation.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/gossip.h"
#include "comm/standing.h"
#include "debug/recorder.h"
#include "exec/operation.h"
#include "group/peers.h"

namespace tutti {

class Comparison {
 public:
  Comparison(int rank, int n_ranks, const Recorder& recorder) : recorder_(recorder), gossip_(rank, n_ranks) {}

  // This rank has called it.
  void add(const Call& call, std::shared_ptr<const Operation::Unequal> blocks);
  // For the other ranks, about the operation with this number; empty where there is nothing to ask, because they know
  // of a question already, or it was too long ago.
  std::string question(uint64_t sequence);
  // What to tell the neighbours now, if anything, of what this rank has been in for so long without progress; the error
  // if that can never end. All but mine's blocks is the caller's to fill in.
  Result<std::string> look(Standing mine);
  // That it leaves, for the neighbours.
  std::string farewell(const Standing& mine);
  // What to answer to a question, which goes from neighbour to neighbour, or to a statement.
  std::optional<PeerWatch::Answer> hear(std::string_view bytes);
  // An error if a neighbour has stated another call than is in this rank's recorder.
  Result<void> check();

 private:
  static constexpr size_t kMostKept = 16;
  static constexpr size_t kMostBlocks = 1000;  // that a question has room for

  // What was told of the operation that this rank is in.
  struct Said {
    uint64_t begun = 0;
    int64_t last_ns = 0, next_ns = 0;  // not again before
    bool to_all = false;
  };

  std::string statement(const Standing& mine, Gossip::Kind kind);
  std::optional<PeerWatch::Answer> hear_question(ByteReader reader, const Gossip::Word& word);
  std::optional<PeerWatch::Answer> hear_statement(ByteReader reader, const Gossip::Word& word);
  std::optional<Gossip::Kind> due(const Standing& mine, bool seems_stuck);
  Account tell(const Call& call) const;

  const Recorder& recorder_;
  std::atomic<bool> has_statements_{false};
  std::mutex mutex_;  // all that follows
  Gossip gossip_;
  Standings stated_;         // the last that each has
  std::set<int> unchecked_;  // whose have yet to be compared with what this rank called
  Said said_;
  // Of the last calls that have any, by their numbers.
  std::deque<std::pair<uint64_t, std::shared_ptr<const Operation::Unequal>>> blocks_;
  std::optional<Account> asked_;  // the first question: all others would have the same answer
};

}  // namespace tutti
