// This header: what operation a rank is in, as it tells the others, and which ranks, judging by that, wait for each
// other for ever.
//
// It rests on what stays true however old a rank's statement is: its operations run one after the other, so what it has
// not begun yet comes after the one that it says it is in. If that one needs something that another rank begins only
// after its own, which in turn needs something of the first, neither ever ends; ranks that are merely late cannot form
// such a cycle. There is one exception: a rank that waits to send a message may go on without its receiver, since links
// buffer some. That counts only if it still waits long after the receiver did anything.
//
// Plain values.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "debug/call.h"

namespace tutti {

// The last collective that a rank has begun, as an Account, and what the rank is doing; `place` is where it called that
// collective, or its messages.
struct Standing : Account {
  // kOther: something that does not say what it waits for.
  enum class Doing : uint8_t { kOther, kCalls, kPasses, kLeft };  // a collective; messages; communicator finalized
  struct Count {
    uint64_t sent = 0, received = 0;  // messages that have begun
  };

  Doing doing = Doing::kOther;
  uint64_t begun = 0;           // collectives and exchanges: tells one from the next on this rank, and is not sent
  uint64_t idle_ns = 0;         // in it without any progress
  uint32_t passed_at_once = 0;  // messages that go together
  std::map<int, Count> counts;  // by peer; if counts_all, the others are 0
  bool counts_all = true;
  // Of their calls only sequence, count and type are sent. A message between two ranks has its number among those in
  // its direction as sequence.
  std::vector<AwaitedMessage> awaited;
  int64_t heard_ns = 0;  // by the hearer's clock

  void put(ByteWriter& writer, size_t most_bytes) const;  // leaves out what does not fit
  static std::optional<Standing> get(ByteReader& reader, int n_ranks);
};

// The latest statements of the others, by rank.
using Standings = std::map<int, Standing>;

struct Verdict {
  std::optional<Error> error;  // that these ranks wait for each other, or for one that has left
  bool seems = false;          // there would be one if a rank still waits to send a message
};
Verdict judge(const Standing& mine, const Standings& others);

// An error if `one` needs something of a rank that has left.
std::optional<Error> missed(const Standing& one, const Standing& left);

}  // namespace tutti
