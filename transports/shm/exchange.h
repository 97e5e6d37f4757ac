// Payloads that two ranks exchange. A payload that has been written by one rank and read by the other lies in the
// reader's cache; if the reader sends its next message in it, each cache line crosses once for each message, not a
// second time to let its writer write it again: 32 KiB each way take 4.5 to 8.5 thousand cycles, not 13 to 45. So a
// link has as many payloads that belong to whoever received them last as it has slots. A rank that has none left,
// because it sends more than it receives, takes the slot's own.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "transports/shm/segment.h"

namespace tutti::shm {

// The two links between this rank and another on one channel, whichever of them there are. One thread at a time.
class Exchange {
 public:
  enum class Side { kSend, kReceive };
  struct Payload {
    bool mine = true;  // in the segment that this rank has made, to send on
    uint32_t index = 0;
  };

  // False if there is such a link already: the other one needs an exchange of its own then.
  bool take(Side side) { return !std::exchange(side == Side::kSend ? sends_ : receives_, true); }
  Segment& segment(Side side) { return side == Side::kSend ? sending_ : receiving_; }
  void set(Side side, Segment segment);

  // This rank has to wait: tells the peer on which CPU, and returns on which one the peer last had to, plus 1; 0 where
  // that is unknown.
  uint32_t tell_cpu();

  // The one to send in next, the last one received; none: the slot's own.
  std::optional<Payload> choose();
  void give(const Payload& payload);     // it was chosen and is on its way
  void take_in(const Payload& payload);  // it was received
  // Null if there is no such segment. No index that a peer makes up leads out of it.
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
