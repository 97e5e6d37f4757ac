// What goes over the control connections from neighbour to neighbour until all ranks have it: numbered by who says it,
// so that whoever hears it again, by another way, knows that. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "base/bytes.h"

namespace tutti {

class Gossip {
 public:
  // Each of comparison.h, inquiry.h and remote_attendants.h has its own.
  enum class Kind : uint8_t { kBlocks = 1, kStatement, kSpread, kInquiry, kAccount, kRollCall, kAttendances };
  struct Word {
    Kind kind;
    int from;
    bool is_known;  // it has come another way, too, or is this rank's own
  };
  static constexpr size_t kHeadBytes = sizeof(Kind) + sizeof(int32_t) + sizeof(uint64_t);

  Gossip(int my_rank, int ranks) : rank(my_rank), n_ranks(ranks) {}

  // Something new; the rest is put behind it.
  ByteWriter begin(Kind kind) { return ByteWriter().put(kind).put(static_cast<int32_t>(rank)).put(++said_); }
  // The rest is left to read. Nothing if it is of none of these kinds.
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
  // Before something is said again: the more ranks, the longer, because each of them passes on what each says.
  int64_t pause_ns(int64_t of_few_ns) const { return of_few_ns * std::max(1, n_ranks / 128); }

  const int rank, n_ranks;

 private:
  uint64_t said_ = 0;
  std::map<int, uint64_t> heard_;  // the last of each rank
};

}  // namespace tutti
