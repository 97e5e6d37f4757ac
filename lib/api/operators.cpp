// The operators that a program creates for one communicator.

#include "api/checks.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

// Above the built-in operators, and different from all numbers given out lately, by other communicators too, so that
// their operators and removed ones are recognised. Programs may create operators all the time, so the numbers wrap
// around eventually.
int next_number() {
  static std::atomic<uint32_t> given{0};
  return tuttiNumOps + static_cast<int>(given++ % (static_cast<uint32_t>(tuttiMaxRedOp) - tuttiNumOps));
}

Error no_such_operator(int op) {
  return invalid_argument(
      format("op=%d is neither one of tuttiRedOp_t (0 to %d) nor a live operator of this communicator: it was "
             "destroyed, or made for another one",
             op, tuttiNumOps - 1));
}

Result<void> create(tuttiRedOp_t* op, const void* scalar, const tuttiDataType_t& datatype,
                    const tuttiScalarResidence_t& residence, tuttiComm_t comm) {
  if (op == nullptr) return invalid_argument("op is NULL");
  if (scalar == nullptr) return invalid_argument("scalar is NULL");
  TUTTI_TRY_ASSIGN(const Use use, use_of(comm));
  PreMulSum made;
  TUTTI_TRY_ASSIGN(made.dtype, check_type(datatype));
  switch (raw(residence)) {
    case tuttiScalarDevice: made.scalar_at = scalar; break;
    case tuttiScalarHostImmediate: memcpy(made.scalar.data(), scalar, dtype_bytes(made.dtype)); break;
    default:
      return invalid_argument(
          format("residence=%d is neither tuttiScalarDevice (0) nor tuttiScalarHostImmediate (1)", raw(residence)));
  }
  *op = static_cast<tuttiRedOp_t>(use.member().operators.add(made, next_number));
  return {};
}

Result<void> destroy(const tuttiRedOp_t& op, tuttiComm_t comm) {
  TUTTI_TRY_ASSIGN(const Use use, use_of(comm));
  if (raw(op) >= 0 && raw(op) < tuttiNumOps)
    return invalid_argument(
        format("op=%d is built in: only operators of tuttiRedOpCreatePreMulSum can be destroyed", raw(op)));
  if (!use.member().operators.remove(raw(op))) return no_such_operator(raw(op));
  return {};
}

}  // namespace

Result<void> tutti::api::take_made_op(int op, const Operators& operators, Operation* operation) {
  const auto made = operators.find(op);
  if (!made) return no_such_operator(op);
  if (made->dtype != operation->dtype)
    return invalid_argument(format("op=%d was made for %s, but datatype=%d is %s: make one for each type", op,
                                   dtype_name(made->dtype), static_cast<int>(operation->dtype),
                                   dtype_name(operation->dtype)));
  operation->op = RedOp::kPreMulSum;
  operation->scalar = made->scalar;
  operation->scalar_at = made->scalar_at;
  return {};
}

extern "C" {

tuttiResult_t tuttiRedOpCreatePreMulSum(tuttiRedOp_t* op, void* scalar, tuttiDataType_t datatype,
                                        tuttiScalarResidence_t residence, tuttiComm_t comm) {
  return guarded([&] { return create(op, scalar, datatype, residence, comm); });
}

tuttiResult_t tuttiRedOpDestroy(tuttiRedOp_t op, tuttiComm_t comm) {
  return guarded([&] { return destroy(op, comm); });
}

}  // extern "C"
