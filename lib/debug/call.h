// debug: what a rank was asked to do, in a form that travels with every message, so that ranks that were asked to do
// different things find out instead of hanging. Plain values. A rank's past operations are in recorder.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "schedule/algorithms.h"

namespace tutti {

// One operation as one rank called it.
struct Call {
  uint64_t sequence = 0;  // the n-th operation on this communicator, from 1
  uint64_t count = 0;     // elements
  Collective collective = Collective::kNone;
  DataType dtype = DataType::kInt8;
  RedOp op = RedOp::kSum;
  Algo algo = Algo::kAuto;
  int32_t root = 0;
  // hash_of() the block sizes, where each rank's has its own; of a message that has its place between collectives, the
  // number of the next one; else 0.
  uint64_t blocks = 0;

  bool operator==(const Call&) const = default;
};

// The operator, which an all-gather has not, of those that the library makes itself: no program's call is taken for
// one.
inline constexpr RedOp kGathersForSplit = RedOp::kMax, kGathersForGrowth = RedOp::kMin;

// A call as the 32 bytes of a message's tag, without loss: both calls can be printed, and comparing costs four words.
using TagWords = std::array<uint64_t, 4>;
TagWords to_tag(const Call& call);
Call from_tag(const TagWords& words);

// What a rank waits to send or to receive: a message of this call.
struct AwaitedMessage {
  bool sends;
  int32_t peer;
  Call call;
  bool has_link = true;  // else a sender may only wait for that, which a peer that lives makes
};

// "AllReduce(count=1024, float, sum) [ring] as operation 7"
std::string to_text(const Call& call);

// A hash of the sizes of all ranks' blocks, in rank order. Never 0.
uint32_t hash_of(std::span<const uint64_t> blocks);

// Whether the user's arguments are the same. Algorithms may differ while a new choice of them is under way.
inline bool is_same_request(const Call& a, const Call& b) {
  return a.collective == b.collective && a.count == b.count && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         a.blocks == b.blocks;
}

// What kAllReduceQuantized packs into `root`: the type on the wire, and elements per block.
struct Wire {
  DataType dtype = DataType::kInt8;
  uint32_t block_elems = 0;
};
constexpr int32_t pack(const Wire& wire) {
  return static_cast<int32_t>(wire.block_elems << 8) | static_cast<int32_t>(wire.dtype);
}
constexpr Wire wire_of(int32_t root) {
  return {static_cast<DataType>(root & 0xff), static_cast<uint32_t>(root) >> 8};
}

inline bool is_point_to_point(const Call& call) {
  return call.collective == Collective::kSendRecv;
}

// A call with whatever is known about it: its block sizes, and " (...)" for the place that called it.
struct Account {
  int rank = -1;
  Call call;
  std::vector<uint64_t> blocks = {};
  std::string place = {};
};
// The error when two ranks have called different operations.
Error disagreement(const Account& one, const Account& other);

}  // namespace tutti
