// What a rank is asked to do, with its buffers.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "debug/call.h"

namespace tutti {

// One message of a point-to-point operation.
struct Message {
  bool sends = false;
  int peer = 0;
  void* data = nullptr;
  uint64_t count = 0;
  DataType dtype = DataType::kInt8;
};

struct Operation {
  Collective collective = Collective::kNone;
  const void* input = nullptr;
  void* output = nullptr;
  uint64_t count = 0;
  DataType dtype = DataType::kInt8;
  RedOp op = RedOp::kSum;
  int root = 0;
  // All-gather and reduce-scatter of unequal blocks: elements of every rank's, and where they begin in the buffer that
  // has them all. `count` is the sum then.
  struct Unequal {
    std::vector<uint64_t> elems, at;
  };
  std::shared_ptr<const Unequal> unequal;
  std::shared_ptr<const std::vector<Message>> messages;  // of kSendRecv, which run together in any order
  // Of kPreMulSum: this rank's factor, one element of dtype; read from scalar_at when the operation runs, if that is
  // set.
  std::array<char, 8> scalar{};
  const void* scalar_at = nullptr;
};

// As it is told to peers and people; without its place in the order.
inline Call to_call(const Operation& operation) {
  Call call;
  call.count = operation.count;
  call.collective = operation.collective;
  call.dtype = operation.dtype;
  call.op = operation.op;
  call.root = operation.root;
  return call;
}

}  // namespace tutti
