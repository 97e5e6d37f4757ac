// Operations, and tuttiExplain, which predicts how they would run.
#include <strings.h>

#include "api/checks.h"
#include "api/group.h"
#include "base/places.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

// Checks the arguments and completes the operation.
Result<void> check(const Use& use, tuttiComm_t comm, const tuttiDataType_t& datatype, const tuttiRedOp_t& op,
                   Operation* operation) {
  if (!use) return not_a_comm(comm);
  const Collective which = operation->collective;
  const uint64_t count = operation->count;
  const int root = operation->root;
  TUTTI_TRY_ASSIGN(const DataType dtype, check_type(datatype));
  if (root < 0 || root >= use->n_ranks())
    return invalid_argument(format("root=%d is not a rank of this communicator: [0, %d)", root, use->n_ranks()));
  const auto buffers = buffers_of(which, count, dtype, root, use->rank(), use->n_ranks());
  if (!buffers)
    return too_many_bytes(count, dtype, traits(which).has_block_per_rank() ? static_cast<size_t>(use->n_ranks()) : 1);
  TUTTI_TRY(check_buffers(*buffers, operation->input, operation->output, count));
  operation->dtype = dtype;
  return take_op(op, use.member().operators, operation);
}

// The path of operations that do not repeat, kept out of line so that the repeated path saves and unwinds little.
[[gnu::noinline]] tuttiResult_t collective(Collective which, const void* send, void* recv, size_t count,
                                           const tuttiDataType_t& datatype, const tuttiRedOp_t& op, int root,
                                           tuttiComm_t comm, tuttiStream_t stream, const void* caller) noexcept {
  return in_group([&]() -> Result<void> {
    Use use(comm);
    Operation operation{which, send, recv, count, DataType::kInt8, RedOp::kSum, root};
    operation.caller = caller;
    TUTTI_TRY(check(use, comm, datatype, op, &operation));
    return launch(comm, std::move(use), operation, stream);
  });
}

// Repeats a small operation with the arguments of an earlier one, if the caller is alone at the moment. An instance for
// each collective, so that it compiles to only what that collective needs.
template <Collective which>
tuttiResult_t run(const void* send, void* recv, size_t count, const tuttiDataType_t& datatype, const tuttiRedOp_t& op,
                  int root, tuttiComm_t comm, tuttiStream_t stream, const void* caller) noexcept {
  if (stream == nullptr && !a_group_is_open()) {
    const Alone alone(comm);
    if (alone) {
      const Error* const error = alone->repeat({which, raw(datatype), raw(op), root, count}, send, recv, caller);
      if (error != &Collectives::kNotRepeated) return error == nullptr ? tuttiSuccess : finish(*error);
    }
  }
  return collective(which, send, recv, count, datatype, op, root, comm, stream, caller);
}

Result<void> message(bool sends, void* data, size_t count, const tuttiDataType_t& datatype, int peer, tuttiComm_t comm,
                     tuttiStream_t stream, const void* caller) {
  Use use(comm);
  if (!use) return not_a_comm(comm);
  TUTTI_TRY_ASSIGN(const DataType dtype, check_type(datatype));
  if (peer < 0 || peer >= use->n_ranks())
    return invalid_argument(format("peer=%d is not a rank of this communicator: [0, %d)", peer, use->n_ranks()));
  TUTTI_TRY_ASSIGN(const size_t bytes, buffer_bytes(count, dtype, 1));
  TUTTI_TRY(check_buffer(sends ? "sendbuff" : "recvbuff", data, count, bytes));
  Operation operation;
  operation.collective = Collective::kSendRecv;
  operation.caller = caller;
  operation.messages = std::make_shared<const std::vector<Message>>(1, Message{sends, peer, data, count, dtype});
  return launch(comm, std::move(use), operation, stream);
}

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
  TUTTI_TRY(check(use, comm, datatype, op, &operation));
  TUTTI_TRY_ASSIGN(const DataType wire, check_type(wiretype));
  TUTTI_TRY(check_quantisable(operation.dtype, operation.op, wire, block_elems));
  const uint64_t bytes = operation.count * sizeof(float);
  const Buffers apart{bytes, bytes, InPlace::kNever};
  if (operation.errors != nullptr &&
      !(apart.lie_well(operation.input, operation.errors) && apart.lie_well(operation.output, operation.errors)))
    return invalid_argument("errorbuff overlaps sendbuff or recvbuff");
  operation.root = pack(Wire{wire, static_cast<uint32_t>(block_elems)});
  return launch(comm, std::move(use), operation, stream);
}

constexpr const char* kPrefix = "tutti";

// Finds a collective by its function's name.
Result<Collective> find_collective(const char* name) {
  if (name == nullptr) return invalid_argument("collective is NULL");
  if (strcasecmp(name, "tuttiBcast") == 0) return Collective::kBroadcast;
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
  TUTTI_TRY_ASSIGN(Use use, use_of(comm));
  TUTTI_TRY_ASSIGN(const DataType dtype, check_type(datatype));
  Operation operation{collective, nullptr, nullptr, count, dtype};
  if (traits(collective).reduces) TUTTI_TRY(take_op(op, use.member().operators, &operation));
  TUTTI_TRY(buffer_bytes(count, dtype, 1));
  give_text(use->explain(operation), text, bytes);
  return {};
}

}  // namespace

extern "C" {

tuttiResult_t tuttiAllReduce(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                             tuttiRedOp_t op, tuttiComm_t comm, tuttiStream_t stream) {
  return run<Collective::kAllReduce>(sendbuff, recvbuff, count, datatype, op, 0, comm, stream,
                                     caller_or_place(__builtin_return_address(0)));
}

tuttiResult_t tuttiBroadcast(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype, int root,
                             tuttiComm_t comm, tuttiStream_t stream) {
  return run<Collective::kBroadcast>(sendbuff, recvbuff, count, datatype, tuttiSum, root, comm, stream,
                                     caller_or_place(__builtin_return_address(0)));
}

tuttiResult_t tuttiBcast(void* buff, size_t count, tuttiDataType_t datatype, int root, tuttiComm_t comm,
                         tuttiStream_t stream) {
  if (buff == nullptr && count > 0)
    return in_group([&]() -> Result<void> { return invalid_argument(format("buff is NULL with count=%zu", count)); });
  return tuttiBroadcast(buff, buff, count, datatype, root, comm, stream);
}

tuttiResult_t tuttiReduce(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype, tuttiRedOp_t op,
                          int root, tuttiComm_t comm, tuttiStream_t stream) {
  return run<Collective::kReduce>(sendbuff, recvbuff, count, datatype, op, root, comm, stream,
                                  caller_or_place(__builtin_return_address(0)));
}

tuttiResult_t tuttiAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, tuttiDataType_t datatype,
                             tuttiComm_t comm, tuttiStream_t stream) {
  return run<Collective::kAllGather>(sendbuff, recvbuff, sendcount, datatype, tuttiSum, 0, comm, stream,
                                     caller_or_place(__builtin_return_address(0)));
}

tuttiResult_t tuttiReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, tuttiDataType_t datatype,
                                 tuttiRedOp_t op, tuttiComm_t comm, tuttiStream_t stream) {
  return run<Collective::kReduceScatter>(sendbuff, recvbuff, recvcount, datatype, op, 0, comm, stream,
                                         caller_or_place(__builtin_return_address(0)));
}

tuttiResult_t tuttiAlltoAll(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                            tuttiComm_t comm, tuttiStream_t stream) {
  return run<Collective::kAllToAll>(sendbuff, recvbuff, count, datatype, tuttiSum, 0, comm, stream,
                                    caller_or_place(__builtin_return_address(0)));
}

tuttiResult_t tuttiGather(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype, int root,
                          tuttiComm_t comm, tuttiStream_t stream) {
  return run<Collective::kGather>(sendbuff, recvbuff, count, datatype, tuttiSum, root, comm, stream,
                                  caller_or_place(__builtin_return_address(0)));
}

tuttiResult_t tuttiScatter(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype, int root,
                           tuttiComm_t comm, tuttiStream_t stream) {
  return run<Collective::kScatter>(sendbuff, recvbuff, count, datatype, tuttiSum, root, comm, stream,
                                   caller_or_place(__builtin_return_address(0)));
}

tuttiResult_t tuttiBarrier(tuttiComm_t comm, tuttiStream_t stream) {
  return run<Collective::kBarrier>(nullptr, nullptr, 0, tuttiInt8, tuttiSum, 0, comm, stream,
                                   caller_or_place(__builtin_return_address(0)));
}

tuttiResult_t tuttiSend(const void* sendbuff, size_t count, tuttiDataType_t datatype, int peer, tuttiComm_t comm,
                        tuttiStream_t stream) {
  // The const_cast is safe: a message that is sent is only read.
  const void* const caller = caller_or_place(__builtin_return_address(0));
  return in_group(
      [&] { return message(true, const_cast<void*>(sendbuff), count, datatype, peer, comm, stream, caller); });
}

tuttiResult_t tuttiRecv(void* recvbuff, size_t count, tuttiDataType_t datatype, int peer, tuttiComm_t comm,
                        tuttiStream_t stream) {
  const void* const caller = caller_or_place(__builtin_return_address(0));
  return in_group([&] { return message(false, recvbuff, count, datatype, peer, comm, stream, caller); });
}

tuttiResult_t tuttiAllReduceQuantized(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                                      tuttiRedOp_t op, tuttiDataType_t wiretype, size_t block_elems, void* errorbuff,
                                      tuttiComm_t comm, tuttiStream_t stream) {
  const Operation operation{.collective = Collective::kAllReduceQuantized,
                            .input = sendbuff,
                            .output = recvbuff,
                            .count = count,
                            .errors = errorbuff,
                            .caller = caller_or_place(__builtin_return_address(0))};
  return in_group([&] { return all_reduce(operation, datatype, op, wiretype, block_elems, comm, stream); });
}

tuttiResult_t tuttiExplain(const char* collective, size_t count, tuttiDataType_t datatype, tuttiRedOp_t op,
                           tuttiComm_t comm, char* text, size_t* bytes) {
  return guarded([&] { return explain(collective, count, datatype, op, comm, text, bytes); });
}

}  // extern "C"
