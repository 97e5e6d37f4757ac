// Checks of arguments that several operations share: each names the argument and its value.
#pragma once

#include <cstdint>
#include <cstring>

#include "api/operators.h"
#include "base/dtype.h"
#include "base/result.h"
#include "comm/communicator.h"
#include "tutti/tutti.h"

namespace tutti::api {

// A C program may pass any number as an enum. So enums come here by reference and unread: to read one that is out of
// range is undefined.
template <class Enum>
int raw(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int number;
  memcpy(&number, &value, sizeof number);
  return number;
}

// The checks are inline and their words are not: what is right costs a few instructions.
[[gnu::cold]] Error no_such_type(int datatype);
[[gnu::cold]] Error too_many_bytes(size_t count, DataType dtype, size_t blocks);
[[gnu::cold]] Error null_buffer(const char* name, size_t count);

inline Result<DataType> check_type(const tuttiDataType_t& datatype) {
  if (raw(datatype) < 0 || raw(datatype) >= tuttiNumTypes) return no_such_type(raw(datatype));
  return static_cast<DataType>(raw(datatype));
}

// Sets the operator of an operation whose dtype is set.
Result<void> take_made_op(int op, const Operators& operators, Operation* operation);
inline Result<void> take_op(const tuttiRedOp_t& op, const Operators& operators, Operation* operation) {
  if (raw(op) < 0 || raw(op) >= tuttiNumOps) return take_made_op(raw(op), operators, operation);
  operation->op = static_cast<RedOp>(raw(op));
  return {};
}

// Bytes of `blocks` blocks of `count` elements; false if those cannot be.
inline bool count_bytes(size_t count, DataType dtype, size_t blocks, size_t* bytes) {
  return !__builtin_mul_overflow(count, dtype_bytes(dtype) * blocks, bytes) && *bytes <= static_cast<size_t>(INT64_MAX);
}
inline Result<size_t> buffer_bytes(size_t count, DataType dtype, size_t blocks) {
  size_t bytes = 0;
  if (!count_bytes(count, dtype, blocks, &bytes)) return too_many_bytes(count, dtype, blocks);
  return bytes;
}

struct Memory {
  uintptr_t at = 0;
  size_t bytes = 0;
};

// A buffer, or none where this rank has no use for it.
inline Result<Memory> check_buffer(const char* name, const void* pointer, bool used, size_t count, size_t bytes) {
  if (!used || bytes == 0) return Memory{};
  if (pointer == nullptr) return null_buffer(name, count);
  return Memory{reinterpret_cast<uintptr_t>(pointer), bytes};
}

// What in place means for an operation: which of the two buffers, or which block of it, the other one is.
enum class InPlace { kNever, kSamePointer, kSendIsOwnBlock, kRecvIsOwnBlock };

// The buffers lie apart, or one is where in place has it: `own_block_offset` bytes into the other.
[[gnu::cold]] Error wrong_overlap(const Memory& send, const Memory& recv, InPlace in_place);
inline bool lie_well(const Memory& send, const Memory& recv, InPlace in_place, size_t own_block_offset) {
  if (send.bytes == 0 || recv.bytes == 0) return true;
  if (send.at >= recv.at + recv.bytes || recv.at >= send.at + send.bytes) return true;
  return (in_place == InPlace::kSamePointer && send.at == recv.at) ||
         (in_place == InPlace::kSendIsOwnBlock && send.at == recv.at + own_block_offset) ||
         (in_place == InPlace::kRecvIsOwnBlock && recv.at == send.at + own_block_offset);
}
inline Result<void> check_overlap(const Memory& send, const Memory& recv, InPlace in_place, size_t own_block_offset) {
  if (!lie_well(send, recv, in_place, own_block_offset)) return wrong_overlap(send, recv, in_place);
  return {};
}

}  // namespace tutti::api
