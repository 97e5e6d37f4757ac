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
  bool in_order = false;  // of a tuttiAlltoAllv that has its place between this rank's collectives
};

struct Operation {
  Collective collective = Collective::kNone;
  const void* input = nullptr;
  void* output = nullptr;
  uint64_t count = 0;
  DataType dtype = DataType::kInt8;
  RedOp op = RedOp::kSum;
  int root = 0;
  // All-gather and reduce-scatter of unequal blocks: each rank's number of elements, and where they begin in the buffer
  // that has all blocks. `count` is then the sum.
  struct Unequal {
    std::vector<uint64_t> elems, at;
    uint32_t hash = 0;  // of `elems`, which must be the same on all ranks; `at` may differ
  };
  std::shared_ptr<const Unequal> unequal;
  std::shared_ptr<const std::vector<Message>> messages;  // of kSendRecv: they run together, in any order
  // For kPreMulSum: this rank's factor, one element of dtype; read from scalar_at when the operation runs, if that is
  // set.
  std::array<char, 8> scalar{};
  const void* scalar_at = nullptr;
  void* errors = nullptr;  // for kAllReduceQuantized: what results lack of this rank's input so far
  // For kAllReduceQuantized if the caller quantises: the whole vector in blocks. Before, the other ranks' parts hold
  // this rank's contributions; afterwards all parts hold sums. `input` and `errors` then cover this rank's part alone.
  void* quantised = nullptr;
  // For the recorder: the call site, and the time of the call (in ticks) if that was well before the operation runs.
  const void* caller = nullptr;
  uint64_t created = 0;
};

// The arguments, as the caller gave them, that are equal in operations that repeat each other.
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

// What peers and people are told of it, without its sequence number.
inline Call to_call(const Operation& operation) {
  return {.count = operation.count,
          .collective = operation.collective,
          .dtype = operation.dtype,
          .op = operation.op,
          .root = operation.root,
          .blocks = operation.unequal != nullptr ? operation.unequal->hash : 0};
}

}  // namespace tutti
