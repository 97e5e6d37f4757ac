// Checks of arguments that several operations share: each names the argument and its value.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/result.h"

namespace tutti::api {

Result<void> check_types(int datatype, int op);

// Bytes of `blocks` blocks of `count` elements, if those can be.
Result<size_t> buffer_bytes(size_t count, DataType dtype, size_t blocks);

struct Memory {
  uintptr_t at = 0;
  size_t bytes = 0;
};

// A buffer, or none where this rank has no use for it.
Result<Memory> check_buffer(const char* name, const void* pointer, bool used, size_t count, size_t bytes);

}  // namespace tutti::api
