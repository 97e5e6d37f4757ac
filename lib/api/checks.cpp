#include "api/checks.h"

#include "api/handle.h"

namespace tutti::api {

static_assert(tuttiNumTypes == kDataTypes && tuttiNumOps == kRedOps);
static_assert(tuttiBfloat16 == static_cast<int>(DataType::kBfloat16) &&
              tuttiFloat64 == static_cast<int>(DataType::kFloat64) && tuttiAvg == static_cast<int>(RedOp::kAvg) &&
              tuttiMin == static_cast<int>(RedOp::kMin));

Result<DataType> check_type(const tuttiDataType_t& datatype) {
  if (raw(datatype) < 0 || raw(datatype) >= tuttiNumTypes)
    return invalid_argument(
        format("datatype=%d is not one of tuttiDataType_t (0 to %d)", raw(datatype), tuttiNumTypes - 1));
  return static_cast<DataType>(raw(datatype));
}

Result<size_t> buffer_bytes(size_t count, DataType dtype, size_t blocks) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, dtype_bytes(dtype) * blocks, &bytes) || bytes > static_cast<size_t>(INT64_MAX))
    return invalid_argument(
        format("count=%zu elements of %zu bytes for %zu ranks overflow", count, dtype_bytes(dtype), blocks));
  return bytes;
}

Result<Memory> check_buffer(const char* name, const void* pointer, bool used, size_t count, size_t bytes) {
  if (!used || bytes == 0) return Memory{};
  if (pointer == nullptr) return invalid_argument(format("%s is NULL with count=%zu", name, count));
  return Memory{reinterpret_cast<uintptr_t>(pointer), bytes};
}

}  // namespace tutti::api
