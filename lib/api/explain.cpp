// tuttiExplain.
#include <strings.h>

#include "api/checks.h"
#include "api/handle.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

constexpr const char* kPrefix = "tutti";

// Named as its function is.
Result<Collective> find_collective(const char* name) {
  if (name == nullptr) return invalid_argument("collective is NULL");
  for (int i = 0; i < kCollectives; i++) {
    const auto collective = static_cast<Collective>(i);
    if (collective == Collective::kNone || collective == Collective::kSendRecv || collective == Collective::kFinalize ||
        collective == Collective::kAllReduceQuantized)
      continue;
    // "tuttiAlltoAll" is NCCL's spelling.
    if (strcasecmp((std::string(kPrefix) + traits(collective).name).c_str(), name) == 0) return collective;
  }
  return invalid_argument(format("collective='%s' is not the name of a collective, such as tuttiAllReduce", name));
}

Result<void> explain(const char* name, size_t count, const tuttiDataType_t& datatype, const tuttiRedOp_t& op,
                     tuttiComm_t comm, char* text, size_t* bytes) {
  TUTTI_TRY(check_text(text, bytes));
  TUTTI_TRY_ASSIGN(const Collective collective, find_collective(name));
  Use use(comm);
  if (!use) return not_a_comm(comm);
  TUTTI_TRY_ASSIGN(const DataType dtype, check_type(datatype));
  Operation operation;
  operation.dtype = dtype;
  if (traits(collective).reduces) TUTTI_TRY(take_op(op, use.member().operators, &operation));
  TUTTI_TRY(buffer_bytes(count, dtype, 1));
  give_text(use->explain(collective, count, dtype, operation.op), text, bytes);
  return {};
}

}  // namespace

extern "C" {

tuttiResult_t tuttiExplain(const char* collective, size_t count, tuttiDataType_t datatype, tuttiRedOp_t op,
                           tuttiComm_t comm, char* text, size_t* bytes) {
  return guarded([&] { return explain(collective, count, datatype, op, comm, text, bytes); });
}

}  // extern "C"
