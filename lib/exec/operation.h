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
    uint32_t hash = 0;  // of `elems`, on which all ranks have to agree; where a rank puts them is its own affair
  };
  std::shared_ptr<const Unequal> unequal;
  std::shared_ptr<const std::vector<Message>> messages;  // of kSendRecv, which run together in any order
  // Of kPreMulSum: this rank's factor, one element of dtype; read from scalar_at when the operation runs, if that is
  // set.
  std::array<char, 8> scalar{};
  const void* scalar_at = nullptr;
  void* errors = nullptr;  // of kAllReduceQuantized: what results lack of this rank's input until now
  // Likewise, where somebody else quantises: blocks of the whole vector, of which the others' parts are this rank's
  // contributions before, and all are sums afterwards. `input` and `errors` are of this rank's part alone then.
  void* quantised = nullptr;
  // For the recorder: where it was called, and when (in ticks), if that was some time before it runs.
  const void* caller = nullptr;
  uint64_t created = 0;
};

// What operations that repeat each other have in common, as the caller gave it.
class CallKey {
 public:
  CallKey() = default;
  CallKey(Collective collective, int dtype, int op, int root, uint64_t count)
      : count_(count), where_(pack(static_cast<int>(collective), root)), what_(pack(dtype, op)) {}
  explicit CallKey(const Operation& operation)
      : CallKey(operation.collective, static_cast<int>(operation.dtype), static_cast<int>(operation.op), operation.root,
                operation.count) {}
  bool operator==(const CallKey&) const = default;
  uint64_t hash() const { return (count_ + where_ * 5 + what_ * 3) * 0x9e3779b97f4a7c15u >> 32; }

 private:
  static uint64_t pack(int low, int high) {
    return uint64_t{static_cast<uint32_t>(low)} | uint64_t{static_cast<uint32_t>(high)} << 32;
  }
  uint64_t count_ = 0, where_ = 0, what_ = 0;
};

// As it is told to peers and people; without its place in the order.
inline Call to_call(const Operation& operation) {
  Call call;
  call.count = operation.count;
  call.collective = operation.collective;
  call.dtype = operation.dtype;
  call.op = operation.op;
  call.root = operation.root;
  if (operation.unequal != nullptr) call.blocks = operation.unequal->hash;
  return call;
}

}  // namespace tutti
