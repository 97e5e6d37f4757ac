// The messages of a link, whatever connections carry them: those that a sender has published, piece by piece until they
// have arrived, and those that a receiver reassembles.
#pragma once

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "base/result.h"
#include "transports/tcp/frame.h"

namespace tutti::tcp {

// One message's room on the sending side.
struct SendSlot {
  char* room;  // slot_bytes of the link's own memory
  tuttiTag tag;
  uint32_t bytes;
  const char* data;       // the payload: the room, or the user's memory
  uint64_t all;           // bit mask of its pieces
  uint64_t handed;        // pieces that a kernel has taken, so that no other connection may
  uint64_t acknowledged;  // pieces that will arrive even if this side does nothing more
};

// One message's room on the receiving side.
struct RecvSlot {
  char* room;
  FrameHeader header;
  char* data;
  uint64_t all;  // bit mask of its pieces; 0: none has arrived
  uint64_t there;

  bool complete() const { return all != 0 && there == all; }
};

// The slots of one half, used as a ring.
template <class Slot>
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
  std::unique_ptr<char, void (*)(void*)> memory_{nullptr, free};
  std::vector<Slot> slots_;
};

// Messages that were published and have not arrived. Each piece waits for a connection, which hands it to its kernel
// and keeps it until it is acknowledged; if the connection breaks first, the piece waits again.
class SendQueue {
 public:
  SendQueue(const Division& division, SlotRing<SendSlot> ring)
      : division_(division), ring_(std::move(ring)), again_(most_pieces()) {}
  size_t most_pieces() const { return division_.most(static_cast<uint32_t>(ring_.size())); }
  bool is_full() const { return published_ - arrived_ == ring_.size(); }
  bool has_arrived() const { return arrived_ == published_; }  // everything published
  uint64_t waiting_bytes() const { return waiting_bytes_; }
  // The next message's room.
  char* room() { return ring_[published_].room; }
  void publish(const void* data, uint32_t bytes, const tuttiTag& tag) {
    SendSlot& slot = ring_[published_++];
    slot.tag = tag;
    slot.bytes = bytes;
    slot.data = data != nullptr ? static_cast<const char*>(data) : slot.room;
    slot.all = division_.all_of(bytes);
    slot.handed = slot.acknowledged = 0;
    waiting_bytes_ += bytes;
  }
  bool last_was_divided() { return published_ > 0 && division_.pieces(ring_[published_ - 1].bytes) > 1; }
  // Messages that still need this side. A copy that a kernel has taken is on its way, and its publisher need not stay:
  // what a connection loses by breaking later is sent again when this side next looks at its link, or closes it. The
  // user's memory is given back only once it will never be read again.
  uint32_t unsent() {
    uint32_t messages = 0;
    for (uint64_t i = arrived_; i < published_; i++) {
      const SendSlot& slot = ring_[i];
      messages += (slot.data == slot.room ? slot.handed : slot.acknowledged) != slot.all;
    }
    return messages;
  }

  bool has_next() const { return !again_.empty() || next_.number < published_; }
  uint32_t next_bytes() { return size_of(again_.empty() ? next_ : again_.front()); }
  SendFrame take_next() {
    Piece piece = next_;
    if (!again_.empty()) {
      piece = again_.front();
      again_.pop();
    } else if (++next_.index == division_.pieces(ring_[piece.number].bytes)) {
      next_ = {piece.number + 1, 0};
    }
    const SendSlot& slot = ring_[piece.number];
    const uint32_t bytes = size_of(piece);
    waiting_bytes_ -= bytes;
    return {make_header(slot.tag, piece.number, slot.bytes, piece.index), slot.data + division_.begin(piece.index),
            bytes};
  }
  void note_handed(const Piece& piece) { ring_[piece.number].handed |= bit_of(piece.index); }
  void note_acknowledged(const Piece& piece) { ring_[piece.number].acknowledged |= bit_of(piece.index); }
  // The piece's connection broke.
  void take_back(const Piece& piece) {
    ring_[piece.number].handed &= ~bit_of(piece.index);
    again_.push(piece);
    waiting_bytes_ += size_of(piece);
  }
  // Frees the slots of acknowledged messages; returns whether there were any.
  bool free_slots() {
    const uint64_t before = arrived_;
    while (!has_arrived() && ring_[arrived_].acknowledged == ring_[arrived_].all) arrived_++;
    return arrived_ != before;
  }

 private:
  uint32_t size_of(const Piece& piece) { return division_.size(ring_[piece.number].bytes, piece.index); }

  Division division_;
  SlotRing<SendSlot> ring_;
  uint64_t published_ = 0;
  uint64_t arrived_ = 0;        // messages before this one need nothing more of this side
  Piece next_{0, 0};            // the first piece that no connection has taken
  Fifo<Piece> again_;           // goes first: pieces of broken connections
  uint64_t waiting_bytes_ = 0;  // of all pieces that no connection has
};

// Reassembles pieces, which arrive in any order and perhaps twice, into messages that are taken in order.
class Reassembly {
 public:
  Reassembly(const Division& division, SlotRing<RecvSlot> ring) : division_(division), ring_(std::move(ring)) {}
  bool is_empty() const { return received_ == released_; }
  uint64_t awaited() const { return received_; }  // number of the first incomplete message
  // The first complete message.
  tuttiMessage front() {
    const RecvSlot& slot = ring_[released_];
    return {slot.data, slot.header.bytes, slot.header.tag};
  }
  void release() {
    RecvSlot& slot = ring_[released_++];
    slot.all = slot.there = 0;
  }
  // Where the next message goes if it has this many bytes.
  void post(char* to, uint32_t bytes) { posted_ = {released_, to, bytes}; }
  bool was_posted_to() const { return posted_.to != nullptr; }

  bool is_valid(const FrameHeader& header) const {
    return header.check == check_of(header) && header.bytes <= division_.slot_bytes() &&
           header.piece < division_.pieces(header.bytes);
  }
  uint32_t size_of(const FrameHeader& header) const { return division_.size(header.bytes, header.piece); }
  // Whether another connection has delivered this piece already, because the one that had it broke or was given up.
  bool has_piece(const FrameHeader& header) {
    if (header.number < received_) return true;
    return window_has(header.number) && (ring_[header.number].there & bit_of(header.piece)) != 0;
  }
  // Sets *to to a piece's place, if its message has a slot by now. False: it is no piece of that message.
  bool find_place(const FrameHeader& header, char** to) {
    if (!window_has(header.number)) return true;
    RecvSlot& slot = ring_[header.number];
    if (slot.all == 0) start_message(slot, header);
    if (slot.header.bytes != header.bytes) return false;
    *to = slot.data + division_.begin(header.piece);
    return true;
  }
  // The piece has arrived.
  void add(const FrameHeader& header) {
    ring_[header.number].there |= bit_of(header.piece);
    while (window_has(received_) && ring_[received_].complete()) received_++;
  }

 private:
  struct Posted {
    uint64_t number = UINT64_MAX;
    char* to = nullptr;
    uint32_t bytes = 0;
  };
  bool window_has(uint64_t number) const { return number - released_ < ring_.size(); }
  void start_message(RecvSlot& slot, const FrameHeader& header) {
    const bool is_posted = header.number == posted_.number && header.bytes == posted_.bytes;
    slot.header = header;
    slot.data = is_posted ? posted_.to : slot.room;
    slot.all = division_.all_of(header.bytes);
    slot.there = 0;
  }

  Division division_;
  SlotRing<RecvSlot> ring_;
  uint64_t received_ = 0;  // messages before this one are complete
  uint64_t released_ = 0;
  Posted posted_;
};

}  // namespace tutti::tcp
