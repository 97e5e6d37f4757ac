// This header: what ranks tell each other about their calls over the control connections, where messages cannot.
// Messages carry a hash of unequal blocks, so a rank that finds a mismatch knows only its own sizes and asks all ranks:
// "I had these, who had others?". The first rank that had others ends the group with both. A rank that has waited long
// tells its neighbours in which operation; if it waits for messages it tells all ranks, since any of them may be the
// cause. A rank that hears this and is the cause ends the group with both calls; see standing.h.
//
// Threading: any thread, except look() and check(), which belong to the thread of the operation.
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

  // Records the blocks of a call that this rank has made.
  void add(const Call& call, std::shared_ptr<const Operation::Unequal> blocks);
  // What to ask the other ranks about this operation; empty if there is nothing to ask, because a question is under way
  // already or the operation is too old.
  std::string question(uint64_t sequence);
  // What to tell the neighbours now, if anything, about an operation that makes no progress; an error if it can never
  // end. The caller fills in `mine`, except for its blocks and heard_ns.
  Result<std::string> look(Standing mine);
  // For the neighbours: that this rank leaves.
  std::string farewell(const Standing& mine);
  // The answer to a question or a statement, both of which travel from neighbour to neighbour.
  std::optional<PeerWatch::Answer> hear(std::string_view bytes);
  // An error if a rank has stated a call that differs from the one in this rank's recorder.
  Result<void> check();

 private:
  static constexpr size_t kMostKept = 16;
  static constexpr size_t kMostBlocks = 1000;  // that fit into a question

  // What this rank has said about its current operation.
  struct Said {
    uint64_t begun = 0;
    int64_t last_ns = 0, next_ns = 0;  // when it spoke last; when it may again
    bool to_all = false;
  };

  std::string statement(const Standing& mine, Gossip::Kind kind);
  std::optional<PeerWatch::Answer> hear_question(ByteReader reader, const Gossip::Word& word);
  std::optional<PeerWatch::Answer> hear_statement(ByteReader reader, const Gossip::Word& word);
  std::optional<Gossip::Kind> due(const Standing& mine, bool seems_stuck);
  Account tell(const Call& call) const;

  const Recorder& recorder_;
  std::atomic<bool> has_statements_{false};
  std::mutex mutex_;  // guards the members below
  Gossip gossip_;
  Standings stated_;         // the latest of each rank
  std::set<int> unchecked_;  // ranks whose latest is not yet compared with this rank's call
  Said said_;
  // Of the latest calls that have unequal blocks, by sequence number.
  std::deque<std::pair<uint64_t, std::shared_ptr<const Operation::Unequal>>> blocks_;
  std::optional<Account> asked_;  // the first question; any other has the same answer
};

}  // namespace tutti
