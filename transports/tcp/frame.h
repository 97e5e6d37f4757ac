// What goes through a connection: frames, each of a header and a piece of a message.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tutti/transport.h"

namespace tutti::tcp {

struct FrameHeader {
  tuttiTag tag;
  uint64_t number;  // of the message in its link: messages on several connections overtake each other
  uint32_t bytes;   // of the whole message
  uint16_t piece;   // which piece of it follows
  uint16_t check;   // check_of(): shows that a stream lost its frame boundaries
};
static_assert(sizeof(FrameHeader) == 48);

inline uint16_t check_of(const FrameHeader& header) {
  const uint64_t mixed =
      (header.number ^ uint64_t{header.bytes} << 16 ^ uint64_t{header.piece} << 50) * 0x9e3779b97f4a7c15;
  return static_cast<uint16_t>(mixed >> 48 ^ 0x5432);
}
inline FrameHeader make_header(const tuttiTag& tag, uint64_t number, uint32_t bytes, uint32_t piece = 0) {
  FrameHeader header{tag, number, bytes, static_cast<uint16_t>(piece), 0};
  header.check = check_of(header);
  return header;
}

// How a link divides its messages: into pieces of one size except the last, at most 64, so that one word tells which
// have arrived. Messages over a single connection are not divided.
class Division {
 public:
  static constexpr uint32_t kMaxPieces = 64;

  Division(uint32_t slot_bytes, size_t n_connections)
      : slot_bytes_(slot_bytes),
        piece_bytes_(n_connections == 1 ? slot_bytes
                                        : std::max(kSmallestPiece, (slot_bytes + kMaxPieces - 1) / kMaxPieces)) {}
  uint32_t slot_bytes() const { return slot_bytes_; }
  uint32_t pieces(uint32_t bytes) const { return std::max(1u, (bytes + piece_bytes_ - 1) / piece_bytes_); }
  uint64_t all_of(uint32_t bytes) const { return ~uint64_t{0} >> (kMaxPieces - pieces(bytes)); }
  uint32_t begin(uint32_t piece) const { return piece * piece_bytes_; }
  uint32_t size(uint32_t bytes, uint32_t piece) const { return std::min(piece_bytes_, bytes - begin(piece)); }
  // The most pieces that messages in `slots` slots can have.
  size_t most(uint32_t slots) const { return size_t{slots} * pieces(slot_bytes_); }

 private:
  // Smaller pieces cost more system calls than they save in waiting for the last one.
  static constexpr uint32_t kSmallestPiece = 32 << 10;
  uint32_t slot_bytes_, piece_bytes_;
};

inline uint64_t bit_of(uint32_t piece) {
  return uint64_t{1} << piece;
}

struct Piece {
  uint64_t number;  // of its message
  uint32_t index;
};

// A frame that a connection must deliver.
struct SendFrame {
  FrameHeader header;
  const char* payload;
  uint32_t payload_bytes;
  size_t sent = 0;  // bytes, of header and payload

  size_t bytes() const { return sizeof header + payload_bytes; }
  Piece piece() const { return {header.number, header.piece}; }
};

// A frame whose header has arrived.
struct RecvFrame {
  FrameHeader header;
  uint32_t bytes;         // of its payload
  char* to = nullptr;     // where the payload goes; null while there is no free slot
  size_t got = 0;         // of its payload, received
  bool unwanted = false;  // another connection has delivered this piece
};

// A queue of fixed capacity, allocated up front.
template <class T>
class Fifo {
 public:
  explicit Fifo(size_t room) : items_(room) {}
  bool empty() const { return begin_ == end_; }
  const T& front() const { return items_[begin_ % items_.size()]; }
  void push(const T& item) { items_[end_++ % items_.size()] = item; }
  void pop() { begin_++; }

 private:
  std::vector<T> items_;
  uint64_t begin_ = 0, end_ = 0;
};

}  // namespace tutti::tcp
