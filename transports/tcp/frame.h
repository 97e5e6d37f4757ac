// What goes through a connection: frames of header and payload.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "base/result.h"
#include "tutti/transport.h"

namespace tutti::tcp {

struct FrameHeader {
  tuttiTag tag;
  uint64_t number;  // which message of the link this is: those of several connections overtake each other
  uint32_t bytes;
  uint32_t check;  // check_of(): a stream that lost its frame boundaries is found out
};

inline uint32_t check_of(const FrameHeader& header) {
  return 0x54545432 ^ header.bytes ^ static_cast<uint32_t>(header.number);
}
inline FrameHeader make_header(const tuttiTag& tag, uint64_t number, uint32_t bytes) {
  FrameHeader header{tag, number, bytes, 0};
  header.check = check_of(header);
  return header;
}

// One message's room on either side.
struct Slot {
  FrameHeader header;
  char* room;        // slot_bytes of the link's own
  const char* data;  // the payload: the room, or the user's memory
  bool done;         // all of it has left, or has come
};

// The slots of one half, used as a ring.
class SlotRing {
 public:
  static Result<SlotRing> create(const tuttiLinkConfig& config) {
    constexpr size_t kPage = 4096;
    const size_t bytes = (static_cast<size_t>(config.slots) * config.slot_bytes + kPage - 1) / kPage * kPage;
    SlotRing ring;
    ring.memory_.reset(static_cast<char*>(aligned_alloc(kPage, bytes)));
    if (!ring.memory_)
      return Error{Code::kSystemError, format("no memory for a link with rank %d: %zu bytes", config.peer, bytes),
                   config.peer, ENOMEM};
    ring.slots_.resize(config.slots);
    for (size_t i = 0; i < config.slots; i++) ring.slots_[i].room = ring.memory_.get() + i * config.slot_bytes;
    return ring;
  }
  Slot& operator[](uint64_t message) { return slots_[message % slots_.size()]; }
  uint64_t size() const { return slots_.size(); }

 private:
  struct Free {
    void operator()(void* p) const { free(p); }
  };
  std::unique_ptr<char, Free> memory_;
  std::vector<Slot> slots_;
};

}  // namespace tutti::tcp
