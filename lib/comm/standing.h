// This header: what a rank is in, as it tells the others, and who can be seen from that to wait for each other for
// good.
//
// It rests on what stays true however old a rank's word is: its operations run one after the other, so what it has not
// begun yet comes after the one that it says it is in. If that one needs something that another rank begins only after
// its own, which needs in turn something of the first, neither ever ends; no rank that is merely late can make such a
// circle. With one exception: a rank that waits to be rid of a message may go on without its receiver, since links hold
// some. That counts only if it still waits long after the receiver did anything.
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

// The last collective that a rank has begun, as an account of it, and what it is in; `place` is where that was called,
// or its messages were.
struct Standing : Account {
  // kOther: something that says nothing of what it waits for.
  enum class Doing : uint8_t { kOther, kCalls, kPasses, kLeft };  // a collective, messages; it has destroyed its own
  struct Count {
    uint64_t sent = 0, received = 0;  // messages that have begun
  };
  // A message that it has yet to be rid of or to get, the n-th between the two that way. Of a collective, only from
  // whom.
  struct Awaited {
    bool sends;
    int32_t peer;
    uint64_t number, count;
    DataType dtype;
  };

  Doing doing = Doing::kOther;
  uint64_t begun = 0;           // operations of both kinds: tells one from the next
  uint64_t idle_ns = 0;         // without any progress in it
  uint32_t passed_at_once = 0;  // messages that go together
  std::map<int, Count> counts;  // by peer; those that are not 0, if counts_all
  bool counts_all = true;
  std::vector<Awaited> awaited;
  int64_t heard_ns = 0;  // by the clock of who has heard it

  void put(ByteWriter& writer, size_t most_bytes) const;  // leaves out what does not fit
  static std::optional<Standing> get(ByteReader& reader, int n_ranks);
};

// What is known of the others, by rank.
using Standings = std::map<int, Standing>;

struct Verdict {
  std::optional<Error> error;  // that these ranks wait for each other, or for one that has left
  bool seems = false;          // it would be, if somebody still waits to be rid of a message
};
Verdict judge(const Standing& mine, const Standings& others);

// What `one` needs of a rank that has left.
std::optional<Error> missed(const Standing& one, const Standing& left);

}  // namespace tutti
