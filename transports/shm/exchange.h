// Payloads that two ranks pass back and forth. A payload that one rank wrote and the other read is in the reader's
// cache; if the reader sends its next message in it, each cache line crosses once per message, not a second time for
// its writer to write it again: 32 KiB each way take 4.5 to 8.5 thousand cycles, not 13 to 45. So besides its slots'
// own payloads a link has as many more, which belong to whichever rank received them last. A rank that has none left,
// because it sends more than it receives, uses the slot's own.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "transports/shm/segment.h"

namespace tutti::shm {

// The links between this rank and another on one channel, at most one each way. One thread at a time.
class Exchange {
 public:
  enum class Side { kSend, kReceive };
  struct Payload {
    bool mine = true;  // in the segment of this rank's sending link
    uint32_t index = 0;
  };

  // False if that side is taken: a second link needs an exchange of its own.
  bool take(Side side) { return !std::exchange(side == Side::kSend ? sends_ : receives_, true); }
  Segment& segment(Side side) { return side == Side::kSend ? sending_ : receiving_; }
  void set(Side side, Segment segment);

  // Called when this rank has to wait: tells the peer on which CPU, and returns 1 + the CPU on which the peer last had
  // to wait; 0 if that is unknown.
  uint32_t tell_cpu();

  // The payload to send in next, the one received last; nullopt: the slot's own.
  std::optional<Payload> choose();
  void give(const Payload& payload);     // it was chosen and has been sent
  void take_in(const Payload& payload);  // it was received
  // Null if there is no such segment. An index that a peer makes up cannot lead outside it.
  char* at(const Payload& payload) const {
    const Segment& segment = payload.mine ? sending_ : receiving_;
    return segment ? segment.payload(segment.slots() + payload.index % segment.slots()) : nullptr;
  }

 private:
  bool peer_knows_both();

  bool sends_ = false, receives_ = false;
  bool peer_knows_both_ = false;
  Segment sending_, receiving_;
  std::vector<Payload> owned_;
};

}  // namespace tutti::shm
