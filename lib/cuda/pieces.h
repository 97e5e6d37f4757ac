// This header: an operation as messages between arenas of device memory, and what a stream does before, between and
// after them. A pure function of the call; nothing here knows streams or networks.
#pragma once

#include <vector>

#include "cuda/moves.h"
#include "exec/operation.h"

namespace tutti::cuda {

// Hands out memory from its beginning. used() tells at the end whether it was enough, or without memory what is needed.
class Room {
 public:
  explicit Room(char* memory) : memory_(memory) {}
  char* take(size_t bytes) {
    char* const at = memory_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  size_t used() const { return used_; }

  static constexpr size_t kAlignment = 512;

 private:
  char* memory_;
  size_t used_ = 0;
};

// A part of an operation, as one rank sees it. Its steps, in order:
struct DirectPiece {
  struct Copy {
    const void* from;
    void* to;
    uint64_t elems;
  };
  struct Sum {
    std::vector<const void*> from;  // in the order of ranks
    void* to;
    uint64_t elems;
  };
  std::vector<Copy> in;          // by the stream; these are scaled, if the operation scales
  std::vector<Message> collect;  // by the network, counts are bytes
  std::vector<Sum> sums;         // by the stream
  std::vector<Message> spread;   // by the network
  std::vector<Copy> out;         // by the stream
};

// A collective that moves or reduces data, cut into pieces at the same places on all ranks.
class DirectPlan {
 public:
  DirectPlan(const Operation& operation, int rank, int n_ranks, size_t room_bytes);
  size_t pieces() const { return pieces_; }
  // `room` has room_bytes bytes.
  DirectPiece piece(size_t number, char* room) const;
  // Whether both exchanges of a piece may have messages. If not, those of `spread` can go with those of `collect`.
  bool has_two_exchanges() const { return moves_.size() == 1; }
  bool reduces() const { return !moves_.empty() && moves_[0].from == kAllRanks; }

 private:
  struct Share;
  void add(const Share& share, Room& room, DirectPiece& piece) const;
  void collect(const Share& share, Room& room, DirectPiece& piece) const;

  const Operation operation_;
  const int me_, n_ranks_;
  const uint64_t elem_bytes_;
  const std::vector<Move> moves_;
  uint64_t piece_elems_ = 0;  // of every move
  size_t pieces_ = 0;
};

// The messages of kSendRecv.
DirectPiece direct_messages(const Operation& operation, int rank, char* room);
size_t direct_messages_room(const Operation& operation);

}  // namespace tutti::cuda
