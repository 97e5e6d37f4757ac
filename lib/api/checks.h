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

Result<DataType> check_type(const tuttiDataType_t& datatype);

// Sets the operator of an operation whose dtype is set.
Result<void> take_op(const tuttiRedOp_t& op, const Operators& operators, Operation* operation);

// Bytes of `blocks` blocks of `count` elements, if those can be.
Result<size_t> buffer_bytes(size_t count, DataType dtype, size_t blocks);

struct Memory {
  uintptr_t at = 0;
  size_t bytes = 0;
};

// A buffer, or none where this rank has no use for it.
Result<Memory> check_buffer(const char* name, const void* pointer, bool used, size_t count, size_t bytes);

// What in place means for an operation: which of the two buffers, or which block of it, the other one is.
enum class InPlace { kNever, kSamePointer, kSendIsOwnBlock, kRecvIsOwnBlock };

// The buffers lie apart, or one is where in place has it: `own_block_offset` bytes into the other.
Result<void> check_overlap(const Memory& send, const Memory& recv, InPlace in_place, size_t own_block_offset);

}  // namespace tutti::api
