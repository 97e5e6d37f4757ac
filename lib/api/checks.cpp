#include "api/checks.h"

namespace tutti::api {

static_assert(tuttiNumTypes == kDataTypes && tuttiNumOps == kRedOps);
static_assert(tuttiBfloat16 == static_cast<int>(DataType::kBfloat16) &&
              tuttiFloat64 == static_cast<int>(DataType::kFloat64) && tuttiAvg == static_cast<int>(RedOp::kAvg) &&
              tuttiMin == static_cast<int>(RedOp::kMin));

Error no_such_type(int datatype) {
  return invalid_argument(format("datatype=%d is not one of tuttiDataType_t (0 to %d)", datatype, tuttiNumTypes - 1));
}

Error too_many_bytes(size_t count, DataType dtype, size_t blocks) {
  return invalid_argument(
      format("count=%zu elements of %zu bytes for %zu ranks overflow", count, dtype_bytes(dtype), blocks));
}

Result<void> check_overlap(const Buffers& buffers, const void* send, const void* recv) {
  static constexpr const char* kRemedies[] = {
      "this operation is never in place: use separate memory", "use the same pointer (in place) or separate memory",
      "use this rank's block of recvbuff as sendbuff (in place) or separate memory",
      "use this rank's block of sendbuff as recvbuff (in place) or separate memory"};
  if (buffers.lie_well(send, recv)) return {};
  return invalid_argument(
      format("sendbuff=%p and recvbuff=%p overlap: %s", send, recv, kRemedies[static_cast<int>(buffers.in_place)]));
}

Result<std::set<int>> check_ranks(const char* name, const int* list, int n, int n_ranks) {
  std::set<int> listed;
  for (int i = 0; i < n; i++) {
    const std::string text = format("%s[%d]=%d", name, i, list[i]);
    if (list[i] < 0 || list[i] >= n_ranks)
      return invalid_argument(format("%s is not a rank of comm: [0, %d)", text.c_str(), n_ranks));
    if (!listed.insert(list[i]).second) return invalid_argument(text + " is listed twice: list each rank once");
  }
  return listed;
}

Result<void> check_text(const char* text, const size_t* bytes) {
  if (bytes == nullptr) return invalid_argument("bytes is NULL");
  if (text == nullptr && *bytes > 0) return invalid_argument(format("text is NULL with *bytes=%zu", *bytes));
  return {};
}

void give_text(const std::string& whole, char* text, size_t* bytes) {
  if (*bytes > 0) {
    const size_t copied = std::min(*bytes - 1, whole.size());
    memcpy(text, whole.data(), copied);
    text[copied] = '\0';
  }
  *bytes = whole.size() + 1;
}

}  // namespace tutti::api
