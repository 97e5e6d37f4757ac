// What the two ends of a link tell each other, and how they find each other.
//
//   sender: Offer    --->          its queue pairs, and where the receiver may write its wishes
//                    <---  Answer  the receiver's, and where the slots are
//           kReady   --->          the sender's are connected, too
//
// All three go through the authenticated connection that stays open beside the link and tells of the peer's death.
// Without the third there is no link: what the receiver writes to queue pairs that are not connected is lost, and its
// device resends it only after TUTTI_IB_TIMEOUT; and a sender that cannot connect them uses another transport. From
// then on:
//
//   header and payload, written into a slot, with an Announcement  --->
//                                     <---  a Wish, written: what was released, and where the next message should go
//
// A header that follows from the one before it and the announcement is not sent: a message whose payload fills its
// packets would need one more packet for it.
//
// And if a queue pair fails while others are left (failover.cpp):
//
//   Notice   <-->   it is closed at this end; from the receiver also what has arrived
//   Notice   --->   a new queue pair in its place, when its port is up
//            <---  the receiver's
#pragma once

#include "transports/adapter.h"
#include "transports/verbs/queue.h"

namespace tutti::verbs {

struct SlotHeader {
  tuttiTag tag;
  uint64_t number;
  uint32_t bytes;
  uint32_t is_placed;  // set by the receiver: the payload is at the wished place
  // What the link in the other direction has released: saves that link a write of its own.
  uint64_t sender;  // that link's number; 0: none
  uint64_t released;
};
static_assert(sizeof(SlotHeader) == 64);

// The immediate value of a message's last write. is_bare, steps and releases let the sender omit the header.
struct Announcement {
  uint32_t number : 14;    // of the message, its low bits
  uint32_t is_placed : 1;  // the payload is at the wished place
  uint32_t is_bare : 1;    // no header: it is the one before, except for the number, the bytes and:
  uint32_t steps : 8;      // increase of the tag's first word, which counts operations
  uint32_t releases : 8;   // increase of `released`

  static constexpr uint32_t kNumbers = 1 << 14, kMost = 255;

  // Omits the header if it follows from the one before.
  void spare(const SlotHeader& header, const SlotHeader& before) {
    const uint64_t more = header.tag.word[0] - before.tag.word[0], released = header.released - before.released;
    is_bare = more <= kMost && released <= kMost && header.sender == before.sender &&
              memcmp(&header.tag.word[1], &before.tag.word[1], sizeof header.tag - sizeof header.tag.word[0]) == 0;
    steps = static_cast<uint8_t>(more);
    releases = static_cast<uint8_t>(released);
  }
  // The header that was omitted.
  SlotHeader header_after(const SlotHeader& before, uint64_t whole_number, uint32_t bytes) const {
    SlotHeader header = before;
    header.number = whole_number;
    header.bytes = bytes;
    header.tag.word[0] += steps;
    header.released += releases;
    return header;
  }
};
static_assert(sizeof(Announcement) == sizeof(uint32_t));
inline uint32_t low_bits(uint64_t number) {
  return static_cast<uint32_t>(number % Announcement::kNumbers);
}

struct Wish {
  uint64_t released;
  uint64_t number;  // of the message that may go to `at`, if it has `bytes`; kNone: none
  uint64_t at;
  uint32_t bytes;
  uint32_t keys[kMaxPorts];  // by the receiver's port
  uint8_t unused[20];

  static constexpr uint64_t kNone = UINT64_MAX;
};
static_assert(sizeof(Wish) == 64);

struct Offer {
  uint32_t n_queues;
  uint32_t unused;
  uint64_t sender;  // the link's number, chosen at random
  uint64_t wishes;  // where the ring of wishes is
  struct Line {
    QueueAddress mine;
    uint32_t my_port, my_gid, your_port, your_gid;  // indices in the endpoints' and in the ports' addresses
  } lines[kMaxQueues];
  PortAddress ports[kMaxPorts];
};

struct Answer {
  uint32_t n_queues;
  uint32_t unused;
  uint64_t slots;  // where the slots are
  QueueAddress queues[kMaxQueues];
  char refusal[256];  // why there are no queues
};

inline constexpr char kReady = 'R';

// Sent through the connection beside the link.
struct Notice {
  enum What : uint32_t { kReleased, kClosed, kMade };
  What what;          // kReleased: only `released` counts; the others: about this end of a queue pair
  uint32_t queue;     // its index; kClosed is also the answer of a receiver that cannot make a new one
  uint64_t released;  // by the receiver
  uint64_t arrived;   // at the receiver: one bit per message, from `released` on
  QueueAddress made;
  char why[220];
};
static_assert(sizeof(Notice) == 256);

// The distance between slots: each holds a header and a payload.
inline size_t stride_of(const tuttiLinkConfig& config) {
  return sizeof(SlotHeader) + config.slot_bytes;
}
// The most wishes that can be unseen: each slot's release, the wishes for the messages in between, and what is repeated
// after a queue pair has failed.
inline uint32_t wishes_of(const tuttiLinkConfig& config) {
  return 2 * config.slots + 2 + static_cast<uint32_t>(kMaxQueues);
}

// The memory of a link, laid out alike at both ends: slots, then a ring of wishes. Each end writes from its own memory
// into the same place of the other's.
class LinkMemory : public Pinned {
 public:
  LinkMemory() = default;
  static Result<LinkMemory> allocate(const Ports& ports, const tuttiLinkConfig& config) {
    const size_t wishes_begin = config.slots * stride_of(config);
    TUTTI_TRY_ASSIGN(Pinned pinned, Pinned::allocate(ports, wishes_begin + wishes_of(config) * sizeof(Wish)));
    return LinkMemory(std::move(pinned), config);
  }
  size_t slot_offset(uint64_t number) const { return number % slots_ * stride_bytes_; }
  char* slot(uint64_t number) const { return data() + slot_offset(number); }
  SlotHeader& header(uint64_t number) const { return *reinterpret_cast<SlotHeader*>(slot(number)); }
  Wish* wishes() const { return reinterpret_cast<Wish*>(data() + slots_ * stride_bytes_); }

 private:
  LinkMemory(Pinned pinned, const tuttiLinkConfig& config)
      : Pinned(std::move(pinned)), slots_(config.slots), stride_bytes_(stride_of(config)) {}

  uint32_t slots_ = 0;
  size_t stride_bytes_ = 0;
};

}  // namespace tutti::verbs
