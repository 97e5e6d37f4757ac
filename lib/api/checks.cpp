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

Result<void> check_overlap(const Memory& send, const Memory& recv, InPlace in_place, size_t own_block_offset) {
  if (send.bytes == 0 || recv.bytes == 0) return {};
  if (send.at >= recv.at + recv.bytes || recv.at >= send.at + send.bytes) return {};
  if (in_place == InPlace::kSamePointer && send.at == recv.at) return {};
  if (in_place == InPlace::kSendIsOwnBlock && send.at == recv.at + own_block_offset) return {};
  if (in_place == InPlace::kRecvIsOwnBlock && recv.at == send.at + own_block_offset) return {};
  static constexpr const char* kRemedies[] = {
      "this operation is never in place: use separate memory", "use the same pointer (in place) or separate memory",
      "use this rank's block of recvbuff as sendbuff (in place) or separate memory",
      "use this rank's block of sendbuff as recvbuff (in place) or separate memory"};
  return invalid_argument(format("sendbuff=%p and recvbuff=%p overlap: %s", reinterpret_cast<void*>(send.at),
                                 reinterpret_cast<void*>(recv.at), kRemedies[static_cast<int>(in_place)]));
}

}  // namespace tutti::api
