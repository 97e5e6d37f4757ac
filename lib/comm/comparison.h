// This header: what ranks tell each other of their calls over the control connections, where messages cannot. These
// carry a hash of unequal blocks, so whoever meets another one knows its own sizes only and asks all ranks: "I had
// these, who had others?". The first one that had ends the group with both. And who has waited for long tells its
// neighbours in which operation.
//
// Threading: any thread.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "debug/call.h"
#include "exec/operation.h"
#include "group/peers.h"

namespace tutti {

class Comparison {
 public:
  Comparison(int rank, int n_ranks) : rank_(rank), n_ranks_(n_ranks) {}

  // This rank has called it; again when more is known of the call.
  void add(const Call& call, std::shared_ptr<const Operation::Unequal> blocks);
  // For the other ranks, about the operation with this number; empty where there is nothing to ask, because they know
  // of a question already, or it was too long ago.
  std::string question(uint64_t sequence);
  // For the neighbours: what this rank called last.
  std::string statement(const Call& call);
  // What to answer to a question, which goes from neighbour to neighbour, or to a statement.
  std::optional<PeerWatch::Answer> hear(std::string_view bytes);
  // An error if a neighbour has stated another call than is in this rank's history.
  Result<void> check(const History& history);

 private:
  enum class Kind : uint8_t { kQuestion = 1, kStatement = 2 };
  struct Told {
    int rank = -1;
    Call call;
    std::vector<uint64_t> blocks;
  };
  struct Record {
    Call call;
    std::shared_ptr<const Operation::Unequal> blocks;
  };
  static constexpr size_t kMostBlocks = 1000;  // that a question has room for

  static std::string to_bytes(const Told& told, Kind kind);
  std::optional<Told> from_bytes(std::string_view bytes, Kind* kind) const;
  const Record* find(uint64_t sequence) const;
  Told tell(const Call& call) const;
  PeerWatch::Answer answer(Told theirs);

  const int rank_, n_ranks_;
  std::atomic<bool> has_statements_{false};
  std::mutex mutex_;                // all that follows
  std::map<int, Told> stated_;      // the last that each neighbour has
  std::array<Record, 16> records_;  // the last ones
  size_t next_ = 0;
  std::optional<Told> asked_;  // the first question: all others would have the same answer
};

}  // namespace tutti
