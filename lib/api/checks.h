// Checks of arguments that several operations share: each names the argument and its value.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/result.h"
#include "tutti/tutti.h"

namespace tutti::api {

// A C program may pass any number as an enum. So enums come here by reference and unread: to read one that is out of
// range is undefined.
Result<void> check_types(const tuttiDataType_t& datatype, const tuttiRedOp_t& op);

// Bytes of `blocks` blocks of `count` elements, if those can be.
Result<size_t> buffer_bytes(size_t count, DataType dtype, size_t blocks);

struct Memory {
  uintptr_t at = 0;
  size_t bytes = 0;
};

// A buffer, or none where this rank has no use for it.
Result<Memory> check_buffer(const char* name, const void* pointer, bool used, size_t count, size_t bytes);

}  // namespace tutti::api
