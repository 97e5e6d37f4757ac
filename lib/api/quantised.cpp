// tuttiAllReduceQuantized.
#include "api/checks.h"
#include "api/group.h"
#include "base/places.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

Result<void> check_quantisable(DataType dtype, RedOp op, DataType wire, size_t block_elems) {
  if (dtype != DataType::kFloat32)
    return invalid_argument(format("datatype is %s: only tuttiFloat32 can be quantised", dtype_name(dtype)));
  if (op != RedOp::kSum && op != RedOp::kAvg)
    return invalid_argument(format("op is %s: only tuttiSum and tuttiAvg can be quantised", red_op_name(op)));
  if (wire != DataType::kInt8 && wire != DataType::kFloat8e4m3)
    return invalid_argument(format("wiretype is %s: give tuttiInt8 or tuttiFloat8e4m3", dtype_name(wire)));
  if (block_elems == 0 || block_elems % 64 != 0 || block_elems > 256)
    return invalid_argument(format("block_elems=%zu: give 64, 128, 192 or 256", block_elems));
  return {};
}

Result<void> all_reduce(Operation operation, const tuttiDataType_t& datatype, const tuttiRedOp_t& op,
                        const tuttiDataType_t& wiretype, size_t block_elems, tuttiComm_t comm, tuttiStream_t stream) {
  Use use(comm);
  if (!use) return not_a_comm(comm);
  TUTTI_TRY_ASSIGN(operation.dtype, check_type(datatype));
  TUTTI_TRY_ASSIGN(const DataType wire, check_type(wiretype));
  TUTTI_TRY(take_op(op, use.member().operators, &operation));
  TUTTI_TRY(check_quantisable(operation.dtype, operation.op, wire, block_elems));
  const auto buffers =
      buffers_of(operation.collective, operation.count, operation.dtype, 0, use->rank(), use->n_ranks());
  if (!buffers) return too_many_bytes(operation.count, operation.dtype, 1);
  TUTTI_TRY(check_buffers(*buffers, operation.input, operation.output, operation.count));
  const Buffers apart{buffers->input_bytes, buffers->output_bytes, InPlace::kNever};
  if (operation.errors != nullptr &&
      !(apart.lie_well(operation.input, operation.errors) && apart.lie_well(operation.output, operation.errors)))
    return invalid_argument("errorbuff overlaps sendbuff or recvbuff");
  operation.root = pack(Wire{wire, static_cast<uint32_t>(block_elems)});
  return launch(comm, std::move(use), operation, stream);
}

}  // namespace

extern "C" {

tuttiResult_t tuttiAllReduceQuantized(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                                      tuttiRedOp_t op, tuttiDataType_t wiretype, size_t block_elems, void* errorbuff,
                                      tuttiComm_t comm, tuttiStream_t stream) {
  Operation operation;
  operation.collective = Collective::kAllReduceQuantized;
  operation.input = sendbuff;
  operation.output = recvbuff;
  operation.count = count;
  operation.errors = errorbuff;
  operation.caller = caller_or_place(__builtin_return_address(0));
  return in_group([&] { return all_reduce(operation, datatype, op, wiretype, block_elems, comm, stream); });
}

}  // extern "C"
