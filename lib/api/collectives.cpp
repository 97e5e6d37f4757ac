// Operations.
#include "api/checks.h"
#include "api/group.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

// What an operation's buffers look like: how many blocks of `count` elements, on which ranks, and what in place means.
enum class Where { kNowhere, kEverywhere, kAtRoot };
struct Shape {
  Where send, recv;
  bool send_per_rank, recv_per_rank;
  InPlace in_place;
};

constexpr Shape shape_of(Collective collective) {
  constexpr auto kAll = Where::kEverywhere, kRoot = Where::kAtRoot;
  switch (collective) {
    case Collective::kAllReduce: return {kAll, kAll, false, false, InPlace::kSamePointer};
    case Collective::kBroadcast: return {kRoot, kAll, false, false, InPlace::kSamePointer};
    case Collective::kReduce: return {kAll, kRoot, false, false, InPlace::kSamePointer};
    case Collective::kAllGather: return {kAll, kAll, false, true, InPlace::kSendIsOwnBlock};
    case Collective::kReduceScatter: return {kAll, kAll, true, false, InPlace::kRecvIsOwnBlock};
    case Collective::kAllToAll: return {kAll, kAll, true, true, InPlace::kNever};
    case Collective::kGather: return {kAll, kRoot, false, true, InPlace::kSendIsOwnBlock};
    case Collective::kScatter: return {kRoot, kAll, true, false, InPlace::kRecvIsOwnBlock};
    default: return {Where::kNowhere, Where::kNowhere, false, false, InPlace::kNever};
  }
}

enum class Fault { kNone, kRoot, kTooManyBytes, kNoRecv, kNoSend, kOverlap };

// In a few instructions, for it comes before every operation; explain() has the words.
[[gnu::always_inline]] inline Fault find_fault(const Shape& shape, const Operation& operation, int rank, int n_ranks,
                                               Memory* send, Memory* recv) {
  if (operation.root < 0 || operation.root >= n_ranks) return Fault::kRoot;
  // The bytes of a buffer, none where this rank has no use for it.
  const auto count_here = [&](Where where, bool per_rank, size_t* bytes) {
    const bool fits = count_bytes(operation.count, operation.dtype, per_rank ? static_cast<size_t>(n_ranks) : 1, bytes);
    if (where == Where::kNowhere || (where == Where::kAtRoot && rank != operation.root)) *bytes = 0;
    return fits;
  };
  *send = {reinterpret_cast<uintptr_t>(operation.input), 0};
  *recv = {reinterpret_cast<uintptr_t>(operation.output), 0};
  if (!count_here(shape.send, shape.send_per_rank, &send->bytes) ||
      !count_here(shape.recv, shape.recv_per_rank, &recv->bytes))
    return Fault::kTooManyBytes;
  if (recv->at == 0 && recv->bytes > 0) return Fault::kNoRecv;
  if (send->at == 0 && send->bytes > 0) return Fault::kNoSend;
  const size_t own_block_at = static_cast<size_t>(rank) * operation.count * dtype_bytes(operation.dtype);
  return lie_well(*send, *recv, shape.in_place, own_block_at) ? Fault::kNone : Fault::kOverlap;
}

[[gnu::cold]] Error explain(Fault fault, const Shape& shape, const Operation& operation, int n_ranks,
                            const Memory& send, const Memory& recv) {
  const bool per_rank = shape.send_per_rank || shape.recv_per_rank;
  switch (fault) {
    case Fault::kRoot:
      return invalid_argument(format("root=%d is not a rank of this communicator: [0, %d)", operation.root, n_ranks));
    case Fault::kTooManyBytes:
      return too_many_bytes(operation.count, operation.dtype, per_rank ? static_cast<size_t>(n_ranks) : 1);
    case Fault::kNoRecv: return null_buffer("recvbuff", operation.count);
    case Fault::kNoSend: return null_buffer("sendbuff", operation.count);
    default: return wrong_overlap(send, recv, shape.in_place);
  }
}

// A function of its own for each operation, so that the checks become what its shape needs of them.
template <Collective which>
Result<void> collective(const void* send, void* recv, size_t count, const tuttiDataType_t& datatype,
                        const tuttiRedOp_t& op, int root, tuttiComm_t comm, tuttiStream_t stream) {
  Use use(comm);
  if (!use) return not_a_comm(comm);
  TUTTI_TRY_ASSIGN(const DataType dtype, check_type(datatype));
  Operation operation{which, send, recv, count, dtype, RedOp::kSum, root};
  constexpr Shape kShape = shape_of(which);
  Memory from, to;
  const Fault fault = find_fault(kShape, operation, use->rank(), use->n_ranks(), &from, &to);
  if (fault != Fault::kNone) return explain(fault, kShape, operation, use->n_ranks(), from, to);
  TUTTI_TRY(take_op(op, use.member().operators, &operation));
  if (runs_now(*use, stream)) {
    const auto repeated = use->repeat(operation);
    if (repeated == Communicator::Repeated::kYes) return {};
    if (repeated == Communicator::Repeated::kFailed) return use->async_error();
  }
  return launch(comm, std::move(use), operation, stream);
}

Result<void> message(bool sends, void* data, size_t count, const tuttiDataType_t& datatype, int peer, tuttiComm_t comm,
                     tuttiStream_t stream) {
  Use use(comm);
  if (!use) return not_a_comm(comm);
  TUTTI_TRY_ASSIGN(const DataType dtype, check_type(datatype));
  if (peer < 0 || peer >= use->n_ranks())
    return invalid_argument(format("peer=%d is not a rank of this communicator: [0, %d)", peer, use->n_ranks()));
  TUTTI_TRY_ASSIGN(const size_t bytes, buffer_bytes(count, dtype, 1));
  TUTTI_TRY(check_buffer(sends ? "sendbuff" : "recvbuff", data, true, count, bytes));
  Operation operation;
  operation.collective = Collective::kSendRecv;
  operation.messages = std::make_shared<const std::vector<Message>>(1, Message{sends, peer, data, count, dtype});
  return launch(comm, std::move(use), operation, stream);
}

}  // namespace

extern "C" {

tuttiResult_t tuttiAllReduce(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                             tuttiRedOp_t op, tuttiComm_t comm, tuttiStream_t stream) {
  return in_group(
      [&] { return collective<Collective::kAllReduce>(sendbuff, recvbuff, count, datatype, op, 0, comm, stream); });
}

tuttiResult_t tuttiBroadcast(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype, int root,
                             tuttiComm_t comm, tuttiStream_t stream) {
  return in_group([&] {
    return collective<Collective::kBroadcast>(sendbuff, recvbuff, count, datatype, tuttiSum, root, comm, stream);
  });
}

tuttiResult_t tuttiBcast(void* buff, size_t count, tuttiDataType_t datatype, int root, tuttiComm_t comm,
                         tuttiStream_t stream) {
  if (buff == nullptr && count > 0)
    return in_group([&]() -> Result<void> { return invalid_argument(format("buff is NULL with count=%zu", count)); });
  return tuttiBroadcast(buff, buff, count, datatype, root, comm, stream);
}

tuttiResult_t tuttiReduce(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype, tuttiRedOp_t op,
                          int root, tuttiComm_t comm, tuttiStream_t stream) {
  return in_group(
      [&] { return collective<Collective::kReduce>(sendbuff, recvbuff, count, datatype, op, root, comm, stream); });
}

tuttiResult_t tuttiAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, tuttiDataType_t datatype,
                             tuttiComm_t comm, tuttiStream_t stream) {
  return in_group([&] {
    return collective<Collective::kAllGather>(sendbuff, recvbuff, sendcount, datatype, tuttiSum, 0, comm, stream);
  });
}

tuttiResult_t tuttiReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, tuttiDataType_t datatype,
                                 tuttiRedOp_t op, tuttiComm_t comm, tuttiStream_t stream) {
  return in_group([&] {
    return collective<Collective::kReduceScatter>(sendbuff, recvbuff, recvcount, datatype, op, 0, comm, stream);
  });
}

tuttiResult_t tuttiAlltoAll(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                            tuttiComm_t comm, tuttiStream_t stream) {
  return in_group([&] {
    return collective<Collective::kAllToAll>(sendbuff, recvbuff, count, datatype, tuttiSum, 0, comm, stream);
  });
}

tuttiResult_t tuttiGather(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype, int root,
                          tuttiComm_t comm, tuttiStream_t stream) {
  return in_group([&] {
    return collective<Collective::kGather>(sendbuff, recvbuff, count, datatype, tuttiSum, root, comm, stream);
  });
}

tuttiResult_t tuttiScatter(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype, int root,
                           tuttiComm_t comm, tuttiStream_t stream) {
  return in_group([&] {
    return collective<Collective::kScatter>(sendbuff, recvbuff, count, datatype, tuttiSum, root, comm, stream);
  });
}

tuttiResult_t tuttiBarrier(tuttiComm_t comm, tuttiStream_t stream) {
  return in_group(
      [&] { return collective<Collective::kBarrier>(nullptr, nullptr, 0, tuttiInt8, tuttiSum, 0, comm, stream); });
}

tuttiResult_t tuttiSend(const void* sendbuff, size_t count, tuttiDataType_t datatype, int peer, tuttiComm_t comm,
                        tuttiStream_t stream) {
  // Only read; a message's direction says so.
  return in_group([&] { return message(true, const_cast<void*>(sendbuff), count, datatype, peer, comm, stream); });
}

tuttiResult_t tuttiRecv(void* recvbuff, size_t count, tuttiDataType_t datatype, int peer, tuttiComm_t comm,
                        tuttiStream_t stream) {
  return in_group([&] { return message(false, recvbuff, count, datatype, peer, comm, stream); });
}

}  // extern "C"
