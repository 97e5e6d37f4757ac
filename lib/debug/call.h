// debug: what a rank was asked to do, in a form that travels with every message, so that ranks which were asked
// different things find out instead of hanging. Plain values. What it did before is in recorder.h.
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
  uint32_t blocks = 0;  // where every rank's has a size of its own: hash_of() them

  bool operator==(const Call&) const = default;
};

// The 32 bytes of a message's tag, losslessly: both calls can be written out, and comparing costs four words.
using TagWords = std::array<uint64_t, 4>;
TagWords to_tag(const Call& call);
Call from_tag(const TagWords& words);

// "AllReduce(count=1024, float, sum) [ring] as operation 7"
std::string to_text(const Call& call);

// Of the sizes of all ranks' blocks, in their order. Never 0.
uint32_t hash_of(std::span<const uint64_t> blocks);

// The same as far as the user says: a choice of algorithm may be under way.
inline bool is_same_request(const Call& a, const Call& b) {
  return a.collective == b.collective && a.count == b.count && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         a.blocks == b.blocks;
}

// What kAllReduceQuantized says in `root`: the type that travels, and elements per block.
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

// A call with whatever is known of it: its blocks, and " (...)" for the place that called it.
struct Account {
  int rank = -1;
  Call call;
  std::vector<uint64_t> blocks = {};
  std::string place = {};
};
// That two ranks called different things.
Error disagreement(const Account& one, const Account& other);

}  // namespace tutti
