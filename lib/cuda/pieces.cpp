#include "cuda/pieces.h"

#include <algorithm>

#include "exec/program.h"

namespace tutti::cuda {
namespace {

Message message(bool sends, int peer, const void* data, size_t bytes) {
  return {sends, peer, as_base(data), bytes, DataType::kInt8};
}

}  // namespace

// Some elements of a move that one rank, the owner, gets from the others and passes on.
struct DirectPlan::Share {
  const Move& move;
  Range range;
  int owner;
};

// A piece needs room for its input, its output, and what is collected to be added up. A single move touches the same
// elements everywhere and needs as much as the piece has for each of these, and once more for the result. Others need
// up to twice as many blocks as there are ranks, because no collective has all three.
DirectPlan::DirectPlan(const Operation& operation, int rank, int n_ranks, size_t room_bytes)
    : operation_(operation),
      me_(rank),
      n_ranks_(n_ranks),
      elem_bytes_(dtype_bytes(operation.dtype)),
      moves_(moves_of(operation, n_ranks)) {
  const auto ranks = static_cast<size_t>(n_ranks);
  const size_t parts = moves_.size() == 1 ? 4 : 2 * ranks + 2;
  const size_t for_alignment = 4 * ranks * (Room::kAlignment + kLineBytes);
  const size_t piece_bytes = (room_bytes - std::min(room_bytes, for_alignment)) / parts;
  piece_elems_ = std::max<uint64_t>(piece_bytes / kLineBytes * kLineBytes, kLineBytes) / elem_bytes_;
  for (const Move& move : moves_) pieces_ = std::max<size_t>(pieces_, (move.elems + piece_elems_ - 1) / piece_elems_);
}

DirectPiece DirectPlan::piece(size_t number, char* memory) const {
  DirectPiece piece;
  Room room(memory);
  const uint64_t at = number * piece_elems_;
  for (const Move& move : moves_) {
    if (at >= move.elems) continue;
    const uint64_t elems = std::min(piece_elems_, move.elems - at);
    if (moves_.size() > 1) {
      add({move, {at, elems}, move.from == kAllRanks ? move.to : move.from}, room, piece);
      continue;
    }
    for (int r = 0; r < n_ranks_; r++) {
      const Range part = part_of(r, n_ranks_, elems, elem_bytes_);
      add({move, {at + part.begin, part.elems}, r}, room, piece);
    }
  }
  return piece;
}

void DirectPlan::add(const Share& share, Room& room, DirectPiece& piece) const {
  const Move& move = share.move;  // clang 14's lambdas cannot capture structured bindings
  const Range range = share.range;
  const int owner = share.owner;
  const bool reduces = move.from == kAllRanks, takes = move.to == kAllRanks || move.to == me_;
  if (range.elems == 0) return;
  if (reduces || owner != move.from) collect(share, room, piece);
  const size_t bytes = range.elems * elem_bytes_;
  const char* const input = static_cast<const char*>(operation_.input) + (move.from_elem + range.begin) * elem_bytes_;
  char* const output = static_cast<char*>(operation_.output) + (move.to_elem + range.begin) * elem_bytes_;
  const auto hand_on = [&](const void* from) {
    for (int r = 0; r < n_ranks_; r++)
      if (r != me_ && r != move.from && (move.to == kAllRanks || move.to == r))
        piece.spread.push_back(message(true, r, from, bytes));
  };
  if (!reduces && me_ == move.from) {
    if (owner == me_ && (move.to == kAllRanks || move.to != me_)) {
      char* const there = room.take(bytes);
      piece.in.push_back({input, there, range.elems});
      hand_on(there);
    }
    if (takes && input != output) piece.out.push_back({input, output, range.elems});
  } else if (owner == me_) {
    const bool ends_here = move.to == me_;
    char* const result = ends_here && reduces ? output : room.take(bytes);
    if (reduces)
      piece.sums.back().to = result;
    else
      piece.collect.back().data = result;
    if (!ends_here) hand_on(result);
    if (takes && result != output) piece.out.push_back({result, output, range.elems});
  } else if (takes) {
    char* const there = room.take(bytes);
    piece.spread.push_back(message(false, owner, there, bytes));
    piece.out.push_back({there, output, range.elems});
  }
}

// What the owner gets from the others. add() decides where it ends up.
void DirectPlan::collect(const Share& share, Room& room, DirectPiece& piece) const {
  const auto& [move, range, owner] = share;
  const bool reduces = move.from == kAllRanks;
  const size_t bytes = range.elems * elem_bytes_;
  const char* const input = static_cast<const char*>(operation_.input) + (move.from_elem + range.begin) * elem_bytes_;
  const void* mine = input;
  // Scaling comes before the transfer.
  if ((reduces || move.from == me_) && (owner != me_ || operation_.op == RedOp::kPreMulSum)) {
    char* const there = room.take(bytes);
    piece.in.push_back({input, there, range.elems});
    mine = there;
    if (owner != me_) piece.collect.push_back(message(true, owner, there, bytes));
  }
  if (owner != me_) return;
  if (!reduces) return piece.collect.push_back(message(false, move.from, nullptr, bytes));
  DirectPiece::Sum& sum = piece.sums.emplace_back();
  sum.elems = range.elems;
  for (int r = 0; r < n_ranks_; r++) {
    if (r != me_) piece.collect.push_back(message(false, r, room.take(bytes), bytes));
    sum.from.push_back(r == me_ ? mine : piece.collect.back().data);
  }
}

size_t direct_messages_room(const Operation& operation) {
  Room room(nullptr);
  for (const Message& m : *operation.messages) room.take(m.count * dtype_bytes(m.dtype));
  return room.used();
}

// The stream copies what a rank sends to itself: the n-th such send matches the n-th such receive.
DirectPiece direct_messages(const Operation& operation, int rank, char* memory) {
  DirectPiece piece;
  Room room(memory);
  std::vector<const Message*> own;
  for (const Message& m : *operation.messages) {
    const size_t bytes = m.count * dtype_bytes(m.dtype);
    if (m.peer == rank) {
      if (m.sends) own.push_back(&m);
      continue;
    }
    char* const there = room.take(bytes);
    piece.collect.push_back({m.sends, m.peer, there, m.count, m.dtype});
    if (m.sends)
      piece.in.push_back({m.data, there, bytes});
    else
      piece.out.push_back({there, m.data, bytes});
  }
  size_t next = 0;
  for (const Message& m : *operation.messages)
    if (m.peer == rank && !m.sends && next < own.size()) {
      const Message& from = *own[next++];
      piece.out.push_back(
          {from.data, m.data, std::min(from.count * dtype_bytes(from.dtype), m.count * dtype_bytes(m.dtype))});
    }
  return piece;
}

}  // namespace tutti::cuda
