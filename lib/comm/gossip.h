// Words that travel over the control connections from neighbour to neighbour until all ranks have them. Each rank
// numbers its own, so that a receiver recognises one that has also come another way. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "base/bytes.h"

namespace tutti {

class Gossip {
 public:
  // Each of comparison.h, inquiry.h and remote_attendants.h has its own kinds.
  enum class Kind : uint8_t { kBlocks = 1, kStatement, kSpread, kInquiry, kAccount, kRollCall, kAttendances };
  struct Word {
    Kind kind;
    int from;
    bool is_known;  // it has also come another way, or is this rank's own
  };
  static constexpr size_t kHeadBytes = sizeof(Kind) + sizeof(int32_t) + sizeof(uint64_t);

  Gossip(int my_rank, int ranks) : rank(my_rank), n_ranks(ranks) {}

  // Begins a new word; the caller appends the rest.
  ByteWriter begin(Kind kind) { return ByteWriter().put(kind).put(static_cast<int32_t>(rank)).put(++said_); }
  // The caller reads the rest. Nothing if the kind is not one of `first` to `last`.
  std::optional<Word> hear(ByteReader* reader, Kind first, Kind last) {
    const auto kind = reader->get<Kind>();
    const auto from = reader->get<int32_t>();
    const auto nth = reader->get<uint64_t>();
    if (!reader->ok() || kind < first || kind > last || !is_rank(from)) return {};
    uint64_t& heard = heard_[from];
    const bool is_known = from == rank || nth <= heard;
    if (!is_known) heard = nth;
    return Word{kind, from, is_known};
  }

  bool is_rank(int any) const { return any >= 0 && any < n_ranks; }
  // How long to wait before repeating something: longer with many ranks, because each of them forwards it.
  int64_t pause_ns(int64_t of_few_ns) const { return of_few_ns * std::max(1, n_ranks / 128); }

  const int rank, n_ranks;

 private:
  uint64_t said_ = 0;
  std::map<int, uint64_t> heard_;  // number of each rank's latest word
};

}  // namespace tutti
